// Walking over a tensor's elements where they lie.
#pragma once

#include <cstddef>
#include <functional>

#include "levada/base/copy.h"
#include "levada/tensor/tensor.h"

namespace levada {

/// Elements that lie in equal runs of bytes, `stride` bytes from the beginning of one to that of the next.
struct Runs {
  const std::byte* data = nullptr;
  std::size_t run_bytes = 0;
  std::size_t count = 0;
  std::ptrdiff_t stride = 0;
};

/// Calls `visit` for parts of `view` that together are its elements in C order; once for a contiguous tensor, not at
/// all for an empty one. Runs are as long as the strides allow. Throws InvalidArgument unless in this machine's memory.
void for_each_runs(const TensorView& view, const std::function<void(const Runs&)>& visit);

/// copy_elements() of which the caller knows how much is copied along with it.
void copy_elements(const TensorView& from, std::byte* to, CopyMode way);

/// Whether dtype, shape and the elements' bits are the same, however they are strided. CPU only, as above.
bool same_elements(const TensorView& a, const TensorView& b);

}  // namespace levada
