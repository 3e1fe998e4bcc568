#include "levada/tensor/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "levada/base/error.h"

namespace levada {

Shape::Shape(std::span<const std::int64_t> extents) : rank_(extents.size()) {
  if (rank_ > max_rank) {
    throw InvalidArgument(fmt::format("a tensor of rank {} exceeds the maximum of {} dimensions", rank_, max_rank));
  }
  std::copy(extents.begin(), extents.end(), extents_.begin());
}

void Shape::push_back(std::int64_t extent) {
  if (rank_ == max_rank) {
    throw InvalidArgument(fmt::format("a tensor can have no more than {} dimensions", max_rank));
  }
  extents_[rank_++] = extent;
}

std::optional<std::size_t> Shape::element_count() const {
  std::int64_t product = 1;
  bool empty = false;
  for (const auto extent : *this) {
    if (extent < 0) return std::nullopt;
    // The other extents must fit even if one is zero, so that strides and slices never overflow.
    if (extent == 0) empty = true;
    else if (__builtin_mul_overflow(product, extent, &product)) return std::nullopt;
  }
  return empty ? 0 : static_cast<std::size_t>(product);
}

Shape Shape::contiguous_strides() const {
  Shape strides;
  strides.rank_ = rank_;
  std::uint64_t stride = 1;  // unsigned: a shape without an element_count() yields meaningless strides, but no overflow
  for (std::size_t dim = rank_; dim-- > 0;) {
    strides.extents_[dim] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(std::max<std::int64_t>(extents_[dim], 1));
  }
  return strides;
}

bool Shape::operator==(const Shape& other) const {
  return std::equal(begin(), end(), other.begin(), other.end());
}

std::string Shape::to_string() const {
  return fmt::format("[{}]", fmt::join(begin(), end(), ", "));
}

}  // namespace levada
