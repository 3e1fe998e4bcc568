#include "levada/tensor/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "levada/base/error.h"

namespace levada {
namespace {

constexpr std::size_t heap_alignment = 64;

std::string describe(DType dtype, const Shape& shape) {
  return dtype.name() + " " + shape.to_string();
}

std::size_t checked_count(DType dtype, const Shape& shape) {
  if (!tensor_bytes(dtype, shape)) {
    throw InvalidArgument(fmt::format(
        "a tensor {} is impossible: an extent is negative or its bytes do not fit in memory", describe(dtype, shape)));
  }
  return *shape.element_count();
}

// Returns whether the distance from the first byte to any other fits in a pointer difference.
bool reach_fits(DType dtype, const Shape& shape, const Shape& strides) {
  std::int64_t reach = static_cast<std::int64_t>(dtype.bytes(1));
  for (std::size_t dim = 0; dim < shape.rank(); ++dim) {
    std::int64_t way = 0;
    if (strides[dim] == std::numeric_limits<std::int64_t>::min()) return false;
    const auto stride = strides[dim] < 0 ? -strides[dim] : strides[dim];
    // Uses the whole extent, because an iteration steps past the end once before it turns back.
    if (__builtin_mul_overflow(stride, shape[dim], &way)) return false;
    if (__builtin_mul_overflow(way, static_cast<std::int64_t>(dtype.bytes(1)), &way)) return false;
    if (__builtin_add_overflow(reach, way, &reach)) return false;
  }
  return true;
}

}  // namespace

std::optional<std::size_t> tensor_bytes(DType dtype, const Shape& shape) {
  const auto count = shape.element_count();
  if (!count) return std::nullopt;
  // The number of bits must fit in a signed 64-bit integer, so that no later sum of bytes overflows.
  const auto bits = checked_mul(*count, std::uint64_t{dtype.bits} * dtype.lanes);
  if (!bits || *bits > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return dtype.bytes(*count);
}

TensorView::TensorView(DType dtype, const Shape& shape, const std::byte* data, Device device)
    : dtype_(dtype),
      shape_(shape),
      strides_(shape.contiguous_strides()),
      data_(data),
      device_(device),
      count_(checked_count(dtype, shape)) {}

TensorView::TensorView(DType dtype, const Shape& shape, const Shape& strides, const std::byte* data, Device device)
    : dtype_(dtype),
      shape_(shape),
      strides_(strides),
      data_(data),
      device_(device),
      count_(checked_count(dtype, shape)) {
  if (strides.rank() != shape.rank()) {
    throw InvalidArgument(
        fmt::format("a tensor {} has strides {} of another rank", describe(dtype, shape), strides.to_string()));
  }
  if (!dtype.is_byte_sized() && !is_contiguous()) {
    throw InvalidArgument(
        fmt::format("a tensor {} packs elements within a byte, so it must be contiguous; its strides are {}",
                    describe(dtype, shape), strides.to_string()));
  }
  if (count_ > 0 && !reach_fits(dtype, shape, strides)) {
    throw InvalidArgument(
        fmt::format("strides {} of a tensor {} reach beyond memory", strides.to_string(), describe(dtype, shape)));
  }
}

bool TensorView::is_contiguous() const {
  if (count_ == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t dim = shape_.rank(); dim-- > 0;) {
    if (shape_[dim] == 1) continue;
    if (strides_[dim] != expected) return false;
    expected *= shape_[dim];
  }
  return true;
}

ByteView TensorView::bytes() const {
  if (!device_.is_cpu()) {
    throw InvalidArgument(fmt::format("the bytes of a tensor {} are on device {}:{}; copy it to the CPU first",
                                      describe(dtype_, shape_), device_.type, device_.index));
  }
  if (!is_contiguous()) {
    throw InvalidArgument(
        fmt::format("the bytes of a tensor {} with strides {} are not contiguous; make a copy with Tensor::copy_of()",
                    describe(dtype_, shape_), strides_.to_string()));
  }
  return {data_, byte_count()};
}

TensorView TensorView::slice(std::size_t dim, std::int64_t begin, std::int64_t end) const {
  if (dim >= shape_.rank()) {
    throw InvalidArgument(fmt::format("a tensor {} has no dimension {} to slice", describe(dtype_, shape_), dim));
  }
  if (begin < 0 || begin > end || end > shape_[dim]) {
    throw InvalidArgument(fmt::format("slice {}:{} along dimension {} is out of range in a tensor {}", begin, end, dim,
                                      describe(dtype_, shape_)));
  }
  if (!dtype_.is_byte_sized() && (begin != 0 || end != shape_[dim])) {
    throw InvalidArgument(
        fmt::format("a tensor {} packs elements within a byte and cannot be sliced", describe(dtype_, shape_)));
  }
  auto part = shape_;
  part[dim] = end - begin;
  // An empty slice has no first element to point to.
  if (part.element_count() == 0) return TensorView(dtype_, part, strides_, data_, device_);
  const auto item = static_cast<std::int64_t>(dtype_.bytes(1));
  return TensorView(dtype_, part, strides_, data_ + begin * strides_[dim] * item, device_);
}

void TensorView::check_type(DType wanted) const {
  if (dtype_ != wanted) {
    throw InvalidArgument(fmt::format("a tensor {} cannot be accessed as {}", describe(dtype_, shape_), wanted.name()));
  }
  // Complex numbers are aligned like their parts.
  const std::size_t align = std::min<std::size_t>(wanted.bytes(1), 8);
  if (reinterpret_cast<std::uintptr_t>(data_) % align != 0) {
    throw InvalidArgument(
        fmt::format("a tensor {} is at an address that is not a multiple of {}; make a copy with Tensor::copy_of()",
                    describe(dtype_, shape_), align));
  }
}

Tensor Tensor::empty(DType dtype, const Shape& shape) {
  const auto bytes = TensorView(dtype, shape, nullptr).byte_count();
  if (bytes == 0) return Tensor(TensorView(dtype, shape, nullptr), nullptr, true);
  auto* data = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{heap_alignment}));
  std::shared_ptr<const void> owner(data,
                                    [](std::byte* p) { ::operator delete (p, std::align_val_t{heap_alignment}); });
  return Tensor(TensorView(dtype, shape, data), std::move(owner), true);
}

Tensor Tensor::zeros(DType dtype, const Shape& shape) {
  auto tensor = empty(dtype, shape);
  const auto bytes = tensor.mutable_bytes();
  if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
  return tensor;
}

Tensor Tensor::copy_of(const TensorView& view) {
  auto tensor = empty(view.dtype(), view.shape());
  copy_elements(view, tensor.mutable_bytes().data());
  return tensor;
}

std::span<std::byte> Tensor::mutable_bytes() {
  if (!writable_) {
    throw InvalidArgument(
        fmt::format("a tensor {} is read-only, because others share its memory; make a copy with Tensor::copy_of()",
                    describe(dtype(), shape())));
  }
  const auto bytes = view_.bytes();
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

TensorView Tensor::checked_view(DType dtype, const Shape& shape, ByteView bytes) {
  const TensorView view(dtype, shape, bytes.data());
  if (view.byte_count() != bytes.size()) {
    throw InvalidArgument(fmt::format("a tensor {} needs {} values, got {}", describe(dtype, shape),
                                      view.element_count(), bytes.size() / dtype.bytes(1)));
  }
  return view;
}

}  // namespace levada
