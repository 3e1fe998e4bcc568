#include "levada/reduce/inputs.h"

#include <fmt/format.h>

#include <cstring>

#include "levada/base/error.h"
#include "levada/tensor/elements.h"

namespace levada {

void check_cpu(const TensorView& input) {
  if (!input.device().is_cpu()) throw InvalidArgument("a tensor to be reduced is on a device; copy it to the CPU");
}

void check_gatherable(const TensorView& input) {
  check_cpu(input);
  if (input.dtype().is_byte_sized()) return;
  throw Unsupported(
      fmt::format("all-gather does not support {}: its elements are smaller than a byte", input.dtype().name()));
}

void check_alike(std::span<const TensorView> inputs, int ranks) {
  if (inputs.size() != static_cast<std::size_t>(ranks)) {
    throw InvalidArgument(fmt::format("a reduce-scatter takes one tensor for each of the {} ranks of the group, got {}",
                                      ranks, inputs.size()));
  }
  const TensorView& first = inputs.front();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_cpu(inputs[i]);
    if (inputs[i].dtype() == first.dtype() && inputs[i].shape() == first.shape()) continue;
    throw InvalidArgument(fmt::format(
        "all ranks' tensors must have one shape and dtype; tensor {} is {} {}, tensor 0 is {} {}", i,
        inputs[i].dtype().name(), inputs[i].shape().to_string(), first.dtype().name(), first.shape().to_string()));
  }
}

Shape part_of(const Shape& shape, int ranks) {
  if (shape.rank() == 0)
    throw InvalidArgument(
        "a tensor without dimensions cannot be divided among ranks; pass a list with one tensor per rank");
  Shape part = shape;
  part[0] = (shape[0] + ranks - 1) / ranks;
  return part;
}

std::size_t bytes_of(DType dtype, const Shape& piece, int ranks) {
  return TensorView(dtype, piece, nullptr).byte_count() * static_cast<std::size_t>(ranks);
}

void copy_padded(const TensorView& input, std::size_t bytes, std::byte* to, CopyMode mode) {
  copy_elements(input, to, mode);
  std::memset(to + input.byte_count(), 0, bytes - input.byte_count());
}

}  // namespace levada
