// Iterates over a tensor's elements in place.
#pragma once

#include <cstddef>
#include <functional>

#include "levada/base/copy.h"
#include "levada/tensor/tensor.h"

namespace levada {

/// Equal runs of bytes, the starts of which are `stride` bytes apart.
struct Runs {
  const std::byte* data = nullptr;
  std::size_t run_bytes = 0;
  std::size_t count = 0;
  std::ptrdiff_t stride = 0;
};

/// Calls `visit` for parts of `view` that together are its elements in C order: once for a contiguous tensor, never for
/// an empty one. Runs are as long as the strides allow. Throws InvalidArgument unless the tensor is in this machine's
/// memory.
void for_each_runs(const TensorView& view, const std::function<void(const Runs&)>& visit);

/// copy_elements() for a caller that knows how much is copied along with it.
void copy_elements(const TensorView& from, std::byte* to, CopyMode way);

/// Returns whether dtype, shape and the bits of the elements are equal, regardless of strides. CPU only, as above.
bool same_elements(const TensorView& a, const TensorView& b);

}  // namespace levada
