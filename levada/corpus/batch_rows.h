// The rows of a batch while they are being filled.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "levada/sources/id_span.h"
#include "levada/tree/tree.h"

namespace levada {

/// The form of a batch of samples.
struct BatchForm {
  std::int64_t sequence = 1;
  DType ids = dtypes::int64;                 ///< type of tokens, labels and position_ids: int64 or int32
  std::optional<std::int64_t> max_segments;  ///< only for packed samples
  bool attention_mask = false;
  std::int64_t end_of_document = -1;  ///< token that ends a document in rows that are not packed
  bool reset_position_ids = false, reset_attention_mask = false;  ///< whether to reset at each document of such a row
  bool eod_mask_loss = false;  ///< whether the loss mask is 0 at the end of a document
};

/// Consecutive rows of a batch, all of the same length, as views of its fields. Fields that are not requested are
/// empty.
struct BatchRows {
  std::size_t rows = 0;
  IdSpan tokens, labels, position_ids;
  std::span<float> loss_mask;
  std::span<std::int32_t> cu_seqlens, max_seqlen;  ///< only for packed samples
  std::span<bool> attention_mask;

  BatchRows part(std::size_t first, std::size_t count) const;
  /// Fills the fields that follow from the segment boundaries of each row: position_ids, max_seqlen and attention_mask.
  /// Without cu_seqlens, a row is one segment, or is split as the form requires. Applies the form's loss mask.
  void fill_derived(const BatchForm& form) const;
};

/// Fills a row of packed samples, segment by segment, except the fields that fill_derived() fills. Borrows its fields.
class PackedRow {
 public:
  /// Requires that `row` is one row, and that `pad_to` divides its length.
  PackedRow(const BatchRows& row, std::int64_t pad_to, std::int64_t padding_label = 0)
      : row_(row), pad_to_(static_cast<std::size_t>(pad_to)), padding_label_(padding_label) {}

  /// The fields of a segment. loss_mask is already 1; the caller must fill tokens and labels.
  struct Segment {
    std::size_t begin = 0;
    IdSpan tokens, labels;
    std::span<float> loss_mask;
  };
  /// Begins a segment of `positions`, rounded up with padding. Requires that the row has room for it.
  Segment add(std::size_t positions);
  /// Fills the rest of the row with padding.
  void finish();

 private:
  void pad(std::size_t begin, std::size_t end) const;

  BatchRows row_;
  std::size_t pad_to_;
  std::int64_t padding_label_;
  std::size_t at_ = 0, segments_ = 0;
};

/// A batch whose fields are still to be filled.
struct NewBatch {
  std::vector<std::pair<Key, Tree>> fields;
  BatchRows rows;
};

/// Reserves memory for all fields of `count` samples, and allocates them from `memory`.
NewBatch make_batch(const BatchForm& form, std::int64_t count, Memory& memory);

}  // namespace levada
