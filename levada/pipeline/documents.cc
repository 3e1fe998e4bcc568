#include "levada/pipeline/documents.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "levada/base/error.h"
#include "levada/pipeline/collate.h"

namespace levada::pipeline {
namespace {

/// The label of padding if documents have their own labels. PyTorch's cross entropy ignores it.
constexpr std::int64_t ignored_label = -100;
constexpr std::array<std::string_view, 3> made_here = {"position_ids", "cu_seqlens", "max_seqlen"};

std::string describe(const Tensor& tensor) {
  return fmt::format("{} {}", tensor.dtype().name(), tensor.shape().to_string());
}

/// Returns the tensor, or a copy if it is not contiguous and aligned.
Tensor in_order(const Tensor& tensor) {
  const auto& view = tensor.view();
  const auto misaligned = reinterpret_cast<std::uintptr_t>(view.data()) % view.dtype().bytes(1) != 0;
  return view.is_contiguous() && !misaligned ? tensor : Tensor::copy_of(view);
}

/// Returns the tensor with elements of type To, or nothing unless it has elements of one of these types.
template <typename To, typename... From>
std::optional<Tensor> converted(const Tensor& tensor) {
  if (tensor.dtype() == dtype_of<To>()) return tensor;
  std::optional<Tensor> made;
  const auto convert = [&]<typename T>(std::type_identity<T>) {
    if (tensor.dtype() != dtype_of<T>()) return;
    made = Tensor::empty(dtype_of<To>(), tensor.shape());
    std::ranges::transform(tensor.as<T>(), made->mutable_as<To>().begin(),
                           [](T value) { return static_cast<To>(value); });
  };
  (convert(std::type_identity<From>()), ...);
  return made;
}

std::optional<Tensor> as_integers(const Tensor& tensor) {
  return converted<std::int64_t, std::int8_t, std::int16_t, std::int32_t, std::uint8_t, std::uint16_t, std::uint32_t,
                   std::uint64_t>(tensor);
}
std::optional<Tensor> as_reals(const Tensor& tensor) {
  return converted<float, bool, double, std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t,
                   std::uint16_t, std::uint32_t, std::uint64_t>(tensor);
}

/// `given`: the tensor before its conversion to `integers`.
void check_range(const std::string& name, const Tensor& integers, const Tensor& given, std::int64_t min,
                 std::int64_t max) {
  const auto values = integers.as<std::int64_t>();
  const auto is_outside = [&](std::int64_t value) {
    return static_cast<std::uint64_t>(value) - static_cast<std::uint64_t>(min) >
           static_cast<std::uint64_t>(max) - static_cast<std::uint64_t>(min);
  };
  bool any = false;
  for (const auto value : values) any |= is_outside(value);
  if (!any) return;
  const auto at = std::ranges::find_if(values, is_outside);
  const auto value =
      given.dtype() == dtypes::uint64 ? fmt::format("{}", static_cast<std::uint64_t>(*at)) : fmt::format("{}", *at);
  throw InvalidArgument(
      fmt::format("element {} of {} is {}; it must be from {} to {}", at - values.begin(), name, value, min, max));
}

/// Returns a field in the form that rows need. Throws unless it has one dimension, of `tokens` elements if that is
/// given.
Tensor field_of(const std::string& name, const Tensor& tensor, std::optional<std::int64_t> tokens) {
  const auto& view = tensor.view();
  if (!view.device().is_cpu())
    throw InvalidArgument(fmt::format("{} is not in this machine's memory; copy it there", name));
  if (view.shape().rank() != 1 || !view.dtype().is_byte_sized()) {
    throw InvalidArgument(fmt::format("{} is {}; a document is an array of one dimension", name, describe(tensor)));
  }
  if (tokens && view.shape()[0] != *tokens) {
    throw InvalidArgument(fmt::format("{} has {} elements, but the document has {} tokens; give one per token", name,
                                      view.shape()[0], *tokens));
  }
  return in_order(tensor);
}

Tensor integers_of(const std::string& name, const Tensor& tensor) {
  if (auto integers = as_integers(tensor)) return *std::move(integers);
  throw InvalidArgument(fmt::format("{} is {}; it must be integers", name, describe(tensor)));
}

void write_ids(std::span<const std::int64_t> ids, IdSpan to) {
  to.visit([&](auto row) {
    using Id = typename decltype(row)::value_type;
    std::ranges::transform(ids, row.begin(), [](std::int64_t id) { return static_cast<Id>(id); });
  });
}

std::string describe(const DocumentForm& form) {
  std::vector<std::string> names;
  if (form.has_labels) names.emplace_back("labels");
  if (form.has_loss_mask) names.emplace_back("loss_mask");
  for (const auto& [name, dtype] : form.others) names.push_back(fmt::format("{} ({})", name, dtype.name()));
  return names.empty() ? "no other fields" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

DocumentPtr Document::copy_from(std::int64_t begin) const {
  const auto copy = [&](const Tensor& tensor) { return Tensor::copy_of(tensor.view().slice(0, begin, size())); };
  Document rest{.tokens = copy(tokens), .labels = {}, .loss_mask = {}, .others = {}, .kind = kind};
  if (labels) rest.labels = copy(*labels);
  if (loss_mask) rest.loss_mask = copy(*loss_mask);
  for (const auto& other : others) rest.others.push_back(copy(other));
  return std::make_shared<const Document>(std::move(rest));
}

DocumentPtr DocumentReader::read(const Arrays& item) {
  const bool is_bare = item.fields.size() == 1 && item.fields.front().first.empty();
  const auto tokens = is_bare ? item.fields.begin()
                              : std::ranges::find(item.fields, tokens_field_, &std::pair<std::string, Tensor>::first);
  if (tokens == item.fields.end()) {
    std::vector<std::string> names;
    for (const auto& field : item.fields) names.push_back(field.first);
    throw InvalidArgument(fmt::format("the document has no field {}, but {}; set tokens to the field with the tokens",
                                      tokens_field_,
                                      names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
  Document document{.tokens = {}, .labels = {}, .loss_mask = {}, .others = {}, .kind = item.kind};
  const auto name = is_bare ? std::string("the item") : tokens_field_;
  document.tokens = integers_of(name, field_of(name, tokens->second, std::nullopt));
  check_range(name, document.tokens, tokens->second, 0, max_id_);

  std::vector<std::pair<std::string, Tensor>> others;
  for (auto field = item.fields.begin(); field != item.fields.end(); ++field) {
    if (field == tokens) continue;
    if (std::ranges::find(made_here, field->first) != made_here.end() || field->first == "tokens") {
      throw InvalidArgument(fmt::format("packing makes the field {} itself; remove it before", field->first));
    }
    auto tensor = field_of(field->first, field->second, document.size());
    if (field->first == "labels") {
      document.labels = integers_of(field->first, tensor);
      check_range(field->first, *document.labels, tensor, -max_id_ - 1, max_id_);
    } else if (field->first == "loss_mask") {
      document.loss_mask = as_reals(tensor);
      if (!document.loss_mask)
        throw InvalidArgument(fmt::format("loss_mask is {}; it must be numbers", describe(tensor)));
    } else {
      others.emplace_back(field->first, std::move(tensor));
    }
  }
  std::ranges::sort(others, {}, &std::pair<std::string, Tensor>::first);
  DocumentForm form{
      .has_labels = document.labels.has_value(), .has_loss_mask = document.loss_mask.has_value(), .others = {}};
  for (auto& [field, tensor] : others) {
    form.others.emplace_back(field, tensor.dtype());
    document.others.push_back(std::move(tensor));
  }
  if (!form_) form_ = form;
  if (form != *form_) {
    throw InvalidArgument(fmt::format("besides tokens it has {}, but earlier documents have {}; all must have the same",
                                      describe(form), describe(*form_)));
  }
  return std::make_shared<const Document>(std::move(document));
}

RowBuilder::RowBuilder(const Pack& pack, std::int64_t max_segments, const DocumentForm& form)
    : form_{.sequence = pack.sequence, .ids = pack.ids, .max_segments = max_segments + 1},
      batch_([&] {
        HeapMemory memory;
        return make_batch(form_, 1, memory);
      }()),
      row_(batch_.rows, pack.pad_to, form.has_labels ? ignored_label : 0) {
  for (const auto& [name, dtype] : form.others) others_.emplace_back(name, Tensor::zeros(dtype, {pack.sequence}));
}

void RowBuilder::begin_segment(std::int64_t positions) {
  segment_ = row_.add(static_cast<std::size_t>(positions));
  at_ = 0;
}

void RowBuilder::add(const Document& document, std::int64_t begin, std::int64_t end) {
  const auto first = static_cast<std::size_t>(begin), last = static_cast<std::size_t>(end);
  if (kind_ == 0) kind_ = document.kind;
  const auto inputs = std::min(last - first, segment_.tokens.size() - at_);
  write_ids(document.tokens.as<std::int64_t>().subspan(first, inputs), segment_.tokens.subspan(at_, inputs));
  for (std::size_t i = 0; i < others_.size(); ++i) {
    auto& to = others_[i].second;
    const auto bytes = to.dtype().bytes(1);
    const auto from = document.others[i].bytes().subspan(first * bytes, inputs * bytes);
    if (!from.empty())
      std::memcpy(to.mutable_bytes().data() + (segment_.begin + at_) * bytes, from.data(), from.size());
  }
  const auto unlabeled = at_ == 0 ? std::size_t{1} : std::size_t{0};  // The segment's first token is not a label.
  if (first + unlabeled < last) add_labels(document, first + unlabeled, last, at_ + unlabeled - 1);
  at_ += last - first;
}

void RowBuilder::add_labels(const Document& document, std::size_t begin, std::size_t end, std::size_t to) const {
  const auto labels = (document.labels ? *document.labels : document.tokens).as<std::int64_t>();
  const auto count = end - begin;
  write_ids(labels.subspan(begin, count), segment_.labels.subspan(to, count));
  const auto loss_mask = segment_.loss_mask.subspan(to, count);
  if (document.loss_mask) std::ranges::copy(document.loss_mask->as<float>().subspan(begin, count), loss_mask.begin());
  if (!document.labels) return;
  for (std::size_t i = 0; i < count; ++i) {
    if (labels[begin + i] < 0) loss_mask[i] = 0;
  }
}

Arrays RowBuilder::finish() && {
  row_.finish();
  batch_.rows.fill_derived(form_);
  Arrays row{.fields = {}, .kind = kind_};
  for (const auto& [name, field] : batch_.fields) {
    row.fields.emplace_back(std::get<std::string>(name), only_row(std::get<Tensor>(field.leaf())));
  }
  for (auto& other : others_) row.fields.push_back(std::move(other));
  return row;
}

}  // namespace levada::pipeline
