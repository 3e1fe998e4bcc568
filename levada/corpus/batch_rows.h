// The rows of a batch, as they are being filled.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "levada/tree/tree.h"

namespace levada {

/// Rows of a batch, one behind the other, all of a length: views of its fields. Those not asked for are empty.
struct BatchRows {
  std::size_t rows = 0;
  std::span<std::int64_t> tokens, labels, position_ids;
  std::span<float> loss_mask;
  std::span<std::int32_t> cu_seqlens, max_seqlen;  ///< of packed samples
  std::span<bool> attention_mask;

  BatchRows part(std::size_t first, std::size_t count) const;
  /// Fills the fields that follow from where the segments of each row begin: position_ids, max_seqlen and
  /// attention_mask. Without cu_seqlens a row is one segment.
  void fill_derived() const;
};

/// What a batch of samples consists of.
struct BatchForm {
  std::int64_t sequence = 1;
  std::optional<std::int64_t> most_segments;  ///< of packed samples
  bool attention_mask = false;
};

/// A batch whose fields still have to be filled.
struct NewBatch {
  std::vector<std::pair<Key, Tree>> fields;
  BatchRows rows;
};

/// Asks `memory` for all fields of `count` samples, at once.
NewBatch make_batch(const BatchForm& form, std::int64_t count, Memory& memory);

}  // namespace levada
