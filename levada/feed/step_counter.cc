#include "levada/feed/step_counter.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace levada {
namespace {

/// Returns the number of elements that have a bit of `mask`, which is cut to the size of an element.
std::int64_t count_with(const Tensor& tensor, std::uint64_t mask) {
  const auto count = [&]<typename Word>(Word bits) -> std::int64_t {
    const auto* words = reinterpret_cast<const Word*>(tensor.bytes().data());
    return std::count_if(words, words + tensor.view().element_count(), [&](Word word) { return (word & bits) != 0; });
  };
  switch (tensor.dtype().bits) {
    case 8: return count(static_cast<std::uint8_t>(mask));
    case 16: return count(static_cast<std::uint16_t>(mask));
    case 32: return count(static_cast<std::uint32_t>(mask));
    default: return count(mask);
  }
}

std::uint64_t sign_of(DType dtype) {
  return std::uint64_t{1} << (dtype.bits - 1);
}

std::int64_t count_nonzero(const Tensor& tensor) {
  const auto code = tensor.dtype().code;
  const bool has_negative_zero = code == dtypes::float32.code || code == dtypes::bfloat16.code;
  return count_with(tensor, has_negative_zero ? ~sign_of(tensor.dtype()) : ~std::uint64_t{0});
}

std::int64_t count_not_negative(const Tensor& tensor) {
  const auto all = static_cast<std::int64_t>(tensor.view().element_count());
  return tensor.dtype().code == dtypes::int64.code ? all - count_with(tensor, sign_of(tensor.dtype())) : all;
}

Tensor contiguous(const Tensor& tensor) {
  return tensor.view().is_contiguous() ? tensor : Tensor::copy_of(tensor);
}

/// Returns the first rows of a field; nothing if there is none, or if its elements cannot be counted.
std::optional<Tensor> rows_of(const FlatTree& batch, int leaf, std::int64_t rows) {
  if (leaf < 0) return {};
  const auto& tensor = std::get<Tensor>(batch.leaves[static_cast<std::size_t>(leaf)]);
  const auto code = tensor.dtype().code;
  const bool is_number = code <= dtypes::bfloat16.code || code == dtypes::boolean.code;
  if (!is_number || tensor.dtype().lanes != 1 || !tensor.view().device().is_cpu()) return {};
  const bool has_more = tensor.shape().rank() > 0 && tensor.shape()[0] > rows;
  return contiguous(has_more ? tensor.slice(0, 0, rows) : tensor);
}

/// `input_ids`: the field beside them, if any.
std::int64_t count_labels(const Tensor& labels, const std::optional<Tensor>& input_ids) {
  const auto count = count_not_negative(labels);
  const auto dims = labels.shape().rank();
  if (!input_ids || input_ids->shape() != labels.shape() || dims == 0 || labels.shape()[dims - 1] == 0) return count;
  return count - count_not_negative(contiguous(labels.slice(dims - 1, 0, 1)));
}

}  // namespace

StepTotals StepCounter::count(const FlatTree& batch, std::int64_t rows) {
  if (schema_.fingerprint() != batch.schema.fingerprint()) mappings_ = find(batch.schema);
  schema_ = batch.schema;
  StepTotals totals;
  for (const Fields& fields : mappings_) {
    const auto input_ids = rows_of(batch, fields.input_ids, rows);
    const auto tokens = fields.tokens < 0 ? input_ids : rows_of(batch, fields.tokens, rows);
    if (tokens) totals.tokens += static_cast<std::int64_t>(tokens->view().element_count());
    if (const auto mask = rows_of(batch, fields.loss_mask, rows)) {
      totals.labels += count_nonzero(*mask);
    } else if (const auto shifted = rows_of(batch, fields.shift_labels, rows)) {
      totals.labels += count_not_negative(*shifted);
    } else if (const auto labels = rows_of(batch, fields.labels, rows)) {
      totals.labels += count_labels(*labels, input_ids);
    }
  }
  return totals;
}

std::vector<StepCounter::Fields> StepCounter::find(const Schema& schema) {
  struct Name {
    std::string_view key;
    int Fields::*field;
  };
  static constexpr Name names[] = {{"tokens", &Fields::tokens},
                                   {"input_ids", &Fields::input_ids},
                                   {"loss_mask", &Fields::loss_mask},
                                   {"shift_labels", &Fields::shift_labels},
                                   {"labels", &Fields::labels}};
  std::map<std::string_view, Fields> mappings;
  for (int leaf = 0; leaf < std::ssize(schema.leaves()); ++leaf) {
    const LeafSpec& spec = schema.leaves()[static_cast<std::size_t>(leaf)];
    const std::string_view path = spec.path;
    const auto key = path.rfind('.') + 1;  // 0 if there is no dot
    const auto name = std::ranges::find(names, path.substr(key), &Name::key);
    if (spec.kind == LeafKind::tensor && name != std::end(names)) mappings[path.substr(0, key)].*(name->field) = leaf;
  }
  std::vector<Fields> found;
  for (const auto& [mapping, fields] : mappings) found.push_back(fields);
  return found;
}

}  // namespace levada
