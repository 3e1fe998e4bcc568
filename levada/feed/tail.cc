#include "levada/feed/tail.h"

#include <fmt/format.h>

#include "levada/base/copy.h"
#include "levada/base/enum_names.h"
#include "levada/base/error.h"
#include "levada/tree/schema.h"

namespace levada {
namespace {

constexpr EnumName<Tail> tail_names[] = {{"drop", Tail::drop}, {"pad", Tail::pad}, {"short", Tail::short_}};

bool is_loss_mask(std::string_view path) {
  constexpr std::string_view name = "loss_mask";
  return path.ends_with(name) && (path.size() == name.size() || path[path.size() - name.size() - 1] == '.');
}

Tensor with_padding(const Tensor& tensor, std::int64_t kept, std::int64_t padding, bool of_zeros) {
  const Tensor from = tensor.view().is_contiguous() ? tensor : Tensor::copy_of(tensor);
  Shape shape = tensor.shape();
  shape[0] = kept + padding;
  Tensor to = Tensor::zeros(tensor.dtype(), shape);
  const auto bytes = to.mutable_bytes();
  const std::size_t sample = from.bytes().size() / static_cast<std::size_t>(tensor.shape()[0]);
  const std::size_t kept_bytes = static_cast<std::size_t>(kept) * sample;
  copy_payload(bytes.data(), from.bytes().data(), kept_bytes);
  if (of_zeros || sample == 0) return to;
  const auto last = from.bytes().last(sample);
  for (auto at = kept_bytes; at < bytes.size(); at += sample) copy_payload(bytes.data() + at, last.data(), sample);
  return to;
}

}  // namespace

std::string_view to_string(Tail tail) {
  return enum_name(tail, tail_names);
}

Tail parse_tail(std::string_view word, std::string_view what) {
  return parse_enum(what, word, tail_names);
}

Tree with_padding(const Tree& batch, std::int64_t samples, std::int64_t kept, std::int64_t padding) {
  FlatTree flat = flatten(batch);
  for (std::size_t leaf = 0; leaf < flat.leaves.size(); ++leaf) {
    auto* tensor = std::get_if<Tensor>(&flat.leaves[leaf]);
    const bool has_samples = tensor != nullptr && tensor->shape().rank() > 0 && tensor->shape()[0] == samples;
    if (!has_samples) continue;
    const auto& path = flat.schema.leaves()[leaf].path;
    if (!tensor->dtype().is_byte_sized()) {
      throw Unsupported(fmt::format("{} is {}, whose samples do not begin on bytes: the last round can only be dropped",
                                    path, tensor->dtype().name()));
    }
    *tensor = with_padding(*tensor, kept, padding, is_loss_mask(path));
  }
  return unflatten(flat);
}

}  // namespace levada
