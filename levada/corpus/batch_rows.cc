#include "levada/corpus/batch_rows.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace levada {
namespace {

constexpr std::size_t alignment = 64;

/// The start of each segment of a row, and the end.
using Segments = std::span<const std::int32_t>;

/// Fills in 0, 1, 2, ... in each segment of a row.
void fill_positions(IdSpan positions, Segments segments) {
  for (std::size_t i = 0; i + 1 < segments.size(); ++i) {
    const auto begin = static_cast<std::size_t>(segments[i]);
    positions.subspan(begin, static_cast<std::size_t>(segments[i + 1]) - begin).count();
  }
}

/// Fills a row's square: true if a token (line) must not attend to another one (column), which is later or in another
/// segment.
void fill_mask(std::span<bool> mask, Segments segments) {
  const auto length = static_cast<std::size_t>(segments.back());
  for (std::size_t i = 0; i + 1 < segments.size(); ++i) {
    const auto begin = static_cast<std::size_t>(segments[i]);
    const auto end = static_cast<std::size_t>(segments[i + 1]);
    for (auto at = begin; at < end; ++at) {
      const auto line = mask.subspan(at * length, length);
      std::ranges::fill(line.first(begin), true);
      std::ranges::fill(line.subspan(begin, at + 1 - begin), false);
      std::ranges::fill(line.subspan(at + 1), true);
    }
  }
}

std::int32_t longest_segment(Segments segments) {
  std::int32_t longest = 0;
  for (std::size_t i = 1; i < segments.size(); ++i) longest = std::max(longest, segments[i] - segments[i - 1]);
  return longest;
}

/// Returns a row's segments if each token `end` is the last of a segment.
std::vector<std::int32_t> segments_ending_with(std::int64_t end, IdSpan tokens) {
  std::vector<std::int32_t> segments = {0};
  tokens.visit([&](auto ids) {
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      if (ids[i] == end) segments.push_back(static_cast<std::int32_t>(i + 1));
    }
  });
  segments.push_back(static_cast<std::int32_t>(tokens.size()));
  return segments;
}

void mask_loss_after(std::int64_t end, IdSpan tokens, std::span<float> loss_mask) {
  tokens.visit([&](auto ids) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == end) loss_mask[i] = 0;
    }
  });
}

/// A field of a batch, before there is memory for it.
struct FieldForm {
  const char* name;
  DType dtype;
  Shape shape;
};

std::vector<FieldForm> field_forms(const BatchForm& form, std::int64_t count) {
  const Shape row = {count, form.sequence};
  std::vector<FieldForm> forms = {{"tokens", form.ids, row},
                                  {"labels", form.ids, row},
                                  {"position_ids", form.ids, row},
                                  {"loss_mask", dtypes::float32, row}};
  if (form.max_segments) {
    forms.push_back({"cu_seqlens", dtypes::int32, {count, *form.max_segments + 1}});
    forms.push_back({"max_seqlen", dtypes::int32, {count}});
  }
  if (form.attention_mask) {
    forms.push_back({"attention_mask", dtypes::boolean, {count, 1, form.sequence, form.sequence}});
  }
  return forms;
}

IdSpan ids_in(Tensor& tensor) {
  if (tensor.dtype() == dtypes::int32) return tensor.mutable_as<std::int32_t>();
  return tensor.mutable_as<std::int64_t>();
}

std::size_t bytes_of(const std::vector<FieldForm>& forms) {
  std::size_t bytes = 0;
  for (const auto& form : forms) bytes += align_up(form.dtype.bytes(form.shape.element_count().value_or(0)), alignment);
  return bytes;
}

}  // namespace

BatchRows BatchRows::part(std::size_t first, std::size_t count) const {
  const auto cut = [&](auto field) { return field.subspan(field.size() / rows * first, field.size() / rows * count); };
  return {.rows = count,
          .tokens = cut(tokens),
          .labels = cut(labels),
          .position_ids = cut(position_ids),
          .loss_mask = cut(loss_mask),
          .cu_seqlens = cut(cu_seqlens),
          .max_seqlen = cut(max_seqlen),
          .attention_mask = cut(attention_mask)};
}

void BatchRows::fill_derived(const BatchForm& form) const {
  const std::array<std::int32_t, 2> whole = {0, static_cast<std::int32_t>(tokens.size() / rows)};
  for (std::size_t i = 0; i < rows; ++i) {
    const auto row = part(i, 1);
    const bool is_packed = !row.cu_seqlens.empty();
    std::vector<std::int32_t> documents;
    if (!is_packed && (form.reset_position_ids || form.reset_attention_mask)) {
      documents = segments_ending_with(form.end_of_document, row.tokens);
    }
    const auto segments = [&](bool reset) -> Segments {
      if (is_packed) return row.cu_seqlens;
      return reset ? Segments(documents) : Segments(whole);
    };
    fill_positions(row.position_ids, segments(form.reset_position_ids));
    if (is_packed) row.max_seqlen.front() = longest_segment(row.cu_seqlens);
    if (form.attention_mask) fill_mask(row.attention_mask, segments(form.reset_attention_mask));
    if (form.eod_mask_loss) mask_loss_after(form.end_of_document, row.tokens, row.loss_mask);
  }
}

PackedRow::Segment PackedRow::add(std::size_t positions) {
  const auto begin = at_;
  at_ += (positions + pad_to_ - 1) / pad_to_ * pad_to_;
  row_.cu_seqlens[segments_++] = static_cast<std::int32_t>(begin);
  const auto loss_mask = row_.loss_mask.subspan(begin, positions);
  std::ranges::fill(loss_mask, 1.0F);
  pad(begin + positions, at_);
  return {begin, row_.tokens.subspan(begin, positions), row_.labels.subspan(begin, positions), loss_mask};
}

void PackedRow::finish() {
  pad(at_, row_.tokens.size());
  const auto behind = row_.cu_seqlens.subspan(segments_);
  std::ranges::fill(behind, static_cast<std::int32_t>(row_.tokens.size()));
  behind.front() = static_cast<std::int32_t>(at_);
}

void PackedRow::pad(std::size_t begin, std::size_t end) const {
  row_.tokens.subspan(begin, end - begin).fill(0);
  row_.labels.subspan(begin, end - begin).fill(padding_label_);
  std::ranges::fill(row_.loss_mask.subspan(begin, end - begin), 0.0F);
}

NewBatch make_batch(const BatchForm& form, std::int64_t count, Memory& memory) {
  const auto forms = field_forms(form, count);
  memory.reserve(bytes_of(forms));
  NewBatch batch{.fields = {}, .rows = {.rows = static_cast<std::size_t>(count)}};
  std::vector<Tensor> tensors;
  for (const auto& field : forms) {
    tensors.push_back(memory.empty(field.dtype, field.shape));
    batch.fields.emplace_back(field.name, tensors.back());
  }
  batch.rows.tokens = ids_in(tensors[0]);
  batch.rows.labels = ids_in(tensors[1]);
  batch.rows.position_ids = ids_in(tensors[2]);
  batch.rows.loss_mask = tensors[3].mutable_as<float>();
  if (form.max_segments) {
    batch.rows.cu_seqlens = tensors[4].mutable_as<std::int32_t>();
    batch.rows.max_seqlen = tensors[5].mutable_as<std::int32_t>();
  }
  if (form.attention_mask) batch.rows.attention_mask = tensors.back().mutable_as<bool>();
  return batch;
}

}  // namespace levada
