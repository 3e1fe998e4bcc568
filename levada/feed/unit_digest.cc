#include "levada/feed/unit_digest.h"

#include <array>

#include "levada/base/hash.h"
#include "levada/base/overloaded.h"
#include "levada/base/text.h"

namespace levada {
namespace {

constexpr std::size_t max_fields = 8, max_path_bytes_shown = 80;

template <typename T>
std::uint64_t hash_of_value(T value) {
  return hash64(std::as_bytes(std::span(&value, 1)));
}

std::uint64_t hash_of_tensor(const Tensor& tensor) {
  const Shape& shape = tensor.shape();
  std::array<std::int64_t, Shape::max_rank> extents{};
  std::copy(shape.begin(), shape.end(), extents.begin());
  const auto seed = hash64(std::as_bytes(std::span(extents).first(shape.rank())));
  return hash64((tensor.view().is_contiguous() ? tensor : Tensor::copy_of(tensor)).bytes(), seed);
}

std::uint64_t hash_of(const Leaf& leaf) {
  return std::visit(
      Overloaded{[](None) { return std::uint64_t{0}; }, [](bool value) { return std::uint64_t{value ? 1U : 0U}; },
                 [](std::int64_t value) { return hash_of_value(value); },
                 [](double value) { return hash_of_value(value); },
                 [](const std::string& text) { return hash64(as_bytes(text)); },
                 [](const Bytes& bytes) { return hash64(bytes); },
                 [](const Tensor& tensor) { return hash_of_tensor(tensor); }},
      leaf);
}

}  // namespace

feed_protocol::UnitDigest digest_of(int unit, const FlatTree& batch, const Source& source) {
  feed_protocol::UnitDigest made{.unit = unit, .structure = batch.schema.fingerprint(), .fields = {}};
  const auto specs = batch.schema.leaves();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].alias_of >= 0 || !source.is_comparable(batch.leaves[i])) continue;
    const auto hash = hash_of(batch.leaves[i]);
    if (made.fields.size() < max_fields) {
      made.fields.push_back({std::string(cut_text(specs[i].path, max_path_bytes_shown)), hash});
      continue;
    }
    auto& last = made.fields.back();
    if (!last.path.ends_with(" or later")) last.path += " or later";
    last.digest = hash64(std::as_bytes(std::span(&hash, 1)), last.digest);
  }
  return made;
}

}  // namespace levada
