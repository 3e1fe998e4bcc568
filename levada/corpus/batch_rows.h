// The rows of a batch, as they are being filled.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "levada/sources/id_span.h"
#include "levada/tree/tree.h"

namespace levada {

/// What a batch of samples consists of.
struct BatchForm {
  std::int64_t sequence = 1;
  DType ids = dtypes::int64;                 ///< of tokens, labels and position_ids: int64 or int32
  std::optional<std::int64_t> max_segments;  ///< of packed samples
  bool attention_mask = false;
  std::int64_t end_of_document = -1;  ///< the token behind which, in rows that are not packed, another document begins
  bool reset_position_ids = false, reset_attention_mask = false;  ///< at each document of such a row
  bool eod_mask_loss = false;                                     ///< the loss mask is 0 where a document has ended
};

/// Rows of a batch, one behind the other, all of a length: views of its fields. Those not asked for are empty.
struct BatchRows {
  std::size_t rows = 0;
  IdSpan tokens, labels, position_ids;
  std::span<float> loss_mask;
  std::span<std::int32_t> cu_seqlens, max_seqlen;  ///< of packed samples
  std::span<bool> attention_mask;

  BatchRows part(std::size_t first, std::size_t count) const;
  /// Fills the fields that follow from where the segments of each row begin: position_ids, max_seqlen and
  /// attention_mask; without cu_seqlens a row is one segment, or is split as the form requires. Applies the form's loss
  /// mask.
  void fill_derived(const BatchForm& form) const;
};

/// Fills a row of packed samples, segment by segment, except the fields that fill_derived() fills. Borrows its fields.
class PackedRow {
 public:
  /// `row` is one row, and `pad_to` divides its length.
  PackedRow(const BatchRows& row, std::int64_t pad_to, std::int64_t padding_label = 0)
      : row_(row), pad_to_(static_cast<std::size_t>(pad_to)), padding_label_(padding_label) {}

  /// The fields of a segment. Its loss_mask is 1; tokens and labels are still to be written.
  struct Segment {
    std::size_t begin = 0;
    IdSpan tokens, labels;
    std::span<float> loss_mask;
  };
  /// Begins a segment of `positions`, which padding rounds up. The row must have room for it.
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

/// A batch whose fields still have to be filled.
struct NewBatch {
  std::vector<std::pair<Key, Tree>> fields;
  BatchRows rows;
};

/// Asks `memory` for all fields of `count` samples, at once.
NewBatch make_batch(const BatchForm& form, std::int64_t count, Memory& memory);

}  // namespace levada
