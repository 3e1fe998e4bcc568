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

/// Whether a placement divides sequences by zigzag among several ranks: only then do boundaries matter.
bool divides_by_zigzag(const Placement& placement, const Mesh& mesh);

/// Finds boundaries by the names that flash-attn, transformers and Transformer Engine give them: the leaves whose key
/// begins with cu_seqlens or cu_seq_lens, but for the counts ending in argmin. Keeps no reference.
class PackedSegments {
 public:
  /// None.
  PackedSegments() = default;
  /// Throws InvalidArgument if a leaf of such a name is neither None nor an int32 or int64 tensor, [entries] for one
  /// row or [rows, entries].
  explicit PackedSegments(const FlatTree& batch);

  /// Returns those of a field: what the nearest mapping around it holds, and the padded ones if that has both.
  FieldSegments of(std::string_view path) const;
  /// Equal for two batches of one schema only if of() is.
  void append_to(std::vector<std::int64_t>& key) const;

 private:
  struct Boundaries {
    std::string path;
    std::vector<std::string> mapping;  ///< the steps to what holds the key
    int padding = 0;                   ///< of several, those of the greatest count
    std::shared_ptr<const Segments> segments;
  };
  std::vector<Boundaries> boundaries_;
};

}  // namespace levada
