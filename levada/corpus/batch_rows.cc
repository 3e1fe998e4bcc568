#include "levada/corpus/batch_rows.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace levada {
namespace {

constexpr std::size_t alignment = 64;

/// 0, 1, 2, ... in each segment of a row.
void fill_positions(std::span<std::int64_t> positions, std::span<const std::int32_t> cu_seqlens) {
  for (std::size_t segment = 0; segment + 1 < cu_seqlens.size(); ++segment) {
    std::iota(positions.begin() + cu_seqlens[segment], positions.begin() + cu_seqlens[segment + 1], 0);
  }
}

/// A row's square: true where a token (line) may not see another (column), since that lies behind it or in another
/// segment.
void fill_mask(std::span<bool> mask, std::span<const std::int32_t> cu_seqlens) {
  const auto length = static_cast<std::size_t>(cu_seqlens.back());
  for (std::size_t segment = 0; segment + 1 < cu_seqlens.size(); ++segment) {
    const auto begin = static_cast<std::size_t>(cu_seqlens[segment]);
    const auto end = static_cast<std::size_t>(cu_seqlens[segment + 1]);
    for (auto at = begin; at < end; ++at) {
      const auto line = mask.subspan(at * length, length);
      std::ranges::fill(line.first(begin), true);
      std::ranges::fill(line.subspan(begin, at + 1 - begin), false);
      std::ranges::fill(line.subspan(at + 1), true);
    }
  }
}

std::int32_t longest_segment(std::span<const std::int32_t> cu_seqlens) {
  std::int32_t longest = 0;
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) longest = std::max(longest, cu_seqlens[i] - cu_seqlens[i - 1]);
  return longest;
}

/// A field of a batch, before there is memory for it.
struct FieldForm {
  const char* name;
  DType dtype;
  Shape shape;
};

std::vector<FieldForm> field_forms(const BatchForm& form, std::int64_t count) {
  const Shape row = {count, form.sequence};
  std::vector<FieldForm> forms = {{"tokens", dtypes::int64, row},
                                  {"labels", dtypes::int64, row},
                                  {"position_ids", dtypes::int64, row},
                                  {"loss_mask", dtypes::float32, row}};
  if (form.most_segments) {
    forms.push_back({"cu_seqlens", dtypes::int32, {count, *form.most_segments + 1}});
    forms.push_back({"max_seqlen", dtypes::int32, {count}});
  }
  if (form.attention_mask) {
    forms.push_back({"attention_mask", dtypes::boolean, {count, 1, form.sequence, form.sequence}});
  }
  return forms;
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

void BatchRows::fill_derived() const {
  const std::array<std::int32_t, 2> whole = {0, static_cast<std::int32_t>(tokens.size() / rows)};
  for (std::size_t i = 0; i < rows; ++i) {
    const auto row = part(i, 1);
    const auto segments = row.cu_seqlens.empty() ? std::span(whole) : std::span<const std::int32_t>(row.cu_seqlens);
    fill_positions(row.position_ids, segments);
    if (!row.max_seqlen.empty()) row.max_seqlen.front() = longest_segment(segments);
    if (!row.attention_mask.empty()) fill_mask(row.attention_mask, segments);
  }
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
  batch.rows.tokens = tensors[0].mutable_as<std::int64_t>();
  batch.rows.labels = tensors[1].mutable_as<std::int64_t>();
  batch.rows.position_ids = tensors[2].mutable_as<std::int64_t>();
  batch.rows.loss_mask = tensors[3].mutable_as<float>();
  if (form.most_segments) {
    batch.rows.cu_seqlens = tensors[4].mutable_as<std::int32_t>();
    batch.rows.max_seqlen = tensors[5].mutable_as<std::int32_t>();
  }
  if (form.attention_mask) batch.rows.attention_mask = tensors.back().mutable_as<bool>();
  return batch;
}

}  // namespace levada
