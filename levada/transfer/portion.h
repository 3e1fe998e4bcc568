// The part that one audience gets of every batch with one structure. Computed once, used at every step.
#pragma once

#include <span>
#include <vector>

#include "levada/plan/plan.h"
#include "levada/transfer/segments.h"
#include "levada/tree/schema.h"

namespace levada {

/// The leaves of a batch that an audience gets, and the part of each. A value; valid for every batch with the same
/// schema and extents.
struct Portion {
  struct Part {
    int leaf = 0;       ///< index of the leaf in the batch
    bool whole = true;  ///< whether the part is the whole leaf, in order
    Region region;      ///< for a tensor that is not whole
    Shape shape;        ///< shape of the part, for a tensor
    std::size_t bytes = 0;
  };
  Schema schema;            ///< schema of the message
  std::vector<Part> parts;  ///< one for each leaf of `schema`; `bytes` is 0 for an alias
  std::size_t tensor_bytes = 0;
};

/// Returns the fields of a batch for a planner, one for each leaf.
std::vector<Field> fields_of(const FlatTree& batch, const PackedSegments& segments = {});

/// Returns the portion of one audience, whose moves, computed from fields_of(batch), are `moves`. Leaves without a move
/// are omitted. An alias remains one if the audience gets the same part of both tensors; otherwise both are sent.
Portion make_portion(const FlatTree& batch, std::span<const Move> moves);

}  // namespace levada
