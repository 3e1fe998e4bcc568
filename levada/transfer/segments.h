// The boundaries of packed sequences in a batch, by which Zigzag divides its rows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levada/plan/plan.h"
#include "levada/tree/schema.h"

namespace levada {

/// Returns whether a placement divides sequences by zigzag among several ranks. Only then do boundaries matter.
bool divides_by_zigzag(const Placement& placement, const Mesh& mesh);

/// Finds the boundaries by the names that flash-attn, transformers and Transformer Engine use: leaves whose key begins
/// with cu_seqlens or cu_seq_lens and does not end with argmin, which marks a count. Keeps no reference to the batch.
class PackedSegments {
 public:
  /// Constructs an empty set.
  PackedSegments() = default;
  /// Throws InvalidArgument if a leaf with such a name is neither None nor an int32 or int64 tensor of shape [entries],
  /// for one row, or [rows, entries].
  explicit PackedSegments(const FlatTree& batch);

  /// Returns the boundaries of a field: those in the nearest enclosing mapping, preferring the padded ones if it has
  /// both.
  FieldSegments of(std::string_view path) const;
  /// Appends values that are equal for two batches with one schema only if of() is equal for both.
  void append_to(std::vector<std::int64_t>& key) const;

 private:
  struct Boundaries {
    std::string path;
    std::vector<std::string> mapping;  ///< the steps to the mapping that holds the key
    int padding = 0;                   ///< precedence among several boundaries; the highest is used
    std::shared_ptr<const Segments> segments;
  };
  std::vector<Boundaries> boundaries_;
};

}  // namespace levada
