// What one audience gets of batches of one structure: computed once, used every step.
#pragma once

#include <span>
#include <vector>

#include "levada/plan/plan.h"
#include "levada/transfer/segments.h"
#include "levada/tree/schema.h"

namespace levada {

/// Leaves of a batch and the part of each that an audience gets. A value; holds for every batch with the same schema
/// and extents.
struct Portion {
  struct Part {
    int leaf = 0;       ///< its number in the batch
    bool whole = true;  ///< all of the leaf, in order
    Region region;      ///< of a tensor that is not whole
    Shape shape;        ///< of the part, for a tensor
    std::size_t bytes = 0;
  };
  Schema schema;            ///< of what is sent
  std::vector<Part> parts;  ///< one a leaf of `schema`; an alias has no bytes of its own
  std::size_t tensor_bytes = 0;
};

/// The fields of a batch as a planner takes them, one a leaf.
std::vector<Field> fields_of(const FlatTree& batch, const PackedSegments& segments = {});

/// `moves`: those of one audience, made from fields_of(batch). Leaves without a move are left out. A tensor that is an
/// alias stays one where the audience gets the same part of both, and is sent by itself elsewhere.
Portion make_portion(const FlatTree& batch, std::span<const Move> moves);

}  // namespace levada
