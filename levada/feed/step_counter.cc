#include "levada/feed/step_counter.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <type_traits>

#include "levada/tensor/elements.h"

namespace levada {
namespace {

/// Returns the number of words that have one of the bits. Counts in words of the same size, which compilers vectorize.
template <typename Word>
std::int64_t count_words(const std::byte* data, std::size_t count, Word bits) {
  constexpr std::size_t block = 128;  // fits in any Word
  std::int64_t found = 0;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const auto end = std::min(begin + block, count);
    Word in_block = 0;
    for (auto i = begin; i < end; ++i) {
      Word word;
      std::memcpy(&word, data + i * sizeof(Word), sizeof(Word));
      in_block = static_cast<Word>(in_block + ((word & bits) != 0 ? 1 : 0));
    }
    found += static_cast<std::int64_t>(in_block);
  }
  return found;
}

/// Returns the number of elements that have a bit of `mask`, truncated to the size of an element.
std::int64_t count_with(const TensorView& view, std::uint64_t mask) {
  const auto count = [&]<typename Word>(Word bits) {
    std::int64_t found = 0;
    for_each_runs(view, [&](const Runs& runs) {
      for (std::size_t i = 0; i < runs.count; ++i) {
        const auto* data = runs.data + static_cast<std::ptrdiff_t>(i) * runs.stride;
        found += count_words(data, runs.run_bytes / sizeof(Word), bits);
      }
    });
    return found;
  };
  switch (view.dtype().bits) {
    case 8: return count(static_cast<std::uint8_t>(mask));
    case 16: return count(static_cast<std::uint16_t>(mask));
    case 32: return count(static_cast<std::uint32_t>(mask));
    default: return count(mask);
  }
}

std::uint64_t sign_of(DType dtype) {
  return std::uint64_t{1} << (dtype.bits - 1);
}

std::int64_t count_nonzero(const TensorView& view) {
  const auto code = view.dtype().code;
  const bool has_negative_zero = code == dtypes::float32.code || code == dtypes::bfloat16.code;
  return count_with(view, has_negative_zero ? ~sign_of(view.dtype()) : ~std::uint64_t{0});
}

std::int64_t count_not_negative(const TensorView& view) {
  const auto all = static_cast<std::int64_t>(view.element_count());
  return view.dtype().code == dtypes::int64.code ? all - count_with(view, sign_of(view.dtype())) : all;
}

/// Returns the rows of a field that are data; nothing if there is no such field, or if its elements are not numbers.
std::optional<TensorView> data_of(const FlatTree& batch, int leaf, const std::optional<PaddedRows>& padded) {
  if (leaf < 0) return {};
  const TensorView& view = std::get<Tensor>(batch.leaves[static_cast<std::size_t>(leaf)]);
  const auto code = view.dtype().code;
  const bool is_number = code <= dtypes::bfloat16.code || code == dtypes::boolean.code;
  if (!is_number || view.dtype().lanes != 1 || !view.device().is_cpu()) return {};
  const bool is_padded = padded && view.shape().rank() > 0 && view.shape()[0] == padded->all;
  return is_padded ? view.slice(0, 0, padded->data) : view;
}

/// Returns the number of labels, or nothing if it is ambiguous. `input_ids`: the field in the same mapping, if any.
std::optional<std::int64_t> count_labels(const TensorView& labels, const std::optional<TensorView>& input_ids) {
  const auto dims = labels.shape().rank();
  const bool may_be_shifted =
      input_ids && input_ids->shape() == labels.shape() && dims > 0 && labels.shape()[dims - 1] > 0;
  if (may_be_shifted && count_not_negative(labels.slice(dims - 1, 0, 1)) > 0) return {};
  return count_not_negative(labels);
}

/// The sum over mappings; nothing if no mapping has such fields, or if the number of one is ambiguous.
class Sum {
 public:
  void add(std::optional<std::int64_t> number) {
    sum_ += number.value_or(0);
    is_known_ = number && (is_known_ || !is_found_);
    is_found_ = true;
  }
  std::optional<std::int64_t> get() const { return is_known_ ? std::optional(sum_) : std::nullopt; }

 private:
  std::int64_t sum_ = 0;
  bool is_found_ = false, is_known_ = false;
};

}  // namespace

StepTotals StepCounter::count(const FlatTree& batch, const std::optional<PaddedRows>& padded) {
  if (schema_.fingerprint() != batch.schema.fingerprint()) mappings_ = find(batch.schema);
  schema_ = batch.schema;
  Sum tokens, labels;
  for (const Fields& fields : mappings_) {
    const auto input_ids = data_of(batch, fields.input_ids, padded);
    const auto positions = fields.tokens < 0 ? input_ids : data_of(batch, fields.tokens, padded);
    if (positions) tokens.add(static_cast<std::int64_t>(positions->element_count()));
    if (fields.loss_mask >= 0) {
      const auto mask = data_of(batch, fields.loss_mask, padded);
      labels.add(mask ? std::optional(count_nonzero(*mask)) : std::nullopt);
    } else if (const auto shifted = data_of(batch, fields.shift_labels, padded)) {
      labels.add(count_not_negative(*shifted));
    } else if (const auto unshifted = data_of(batch, fields.labels, padded)) {
      labels.add(count_labels(*unshifted, input_ids));
    }
  }
  return {.samples = 0, .tokens = tokens.get(), .labels = labels.get()};
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
