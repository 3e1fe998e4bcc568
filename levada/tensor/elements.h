// Iterates over a tensor's elements in place.
#pragma once

#include <cstddef>
#include <functional>

#include "levada/base/copy.h"
#include "levada/tensor/tensor.h"

namespace levada {

/// Runs of bytes of equal length whose starts are `stride` bytes apart.
struct Runs {
  const std::byte* data = nullptr;
  std::size_t run_bytes = 0;
  std::size_t count = 0;
  std::ptrdiff_t stride = 0;
};

/// Visits the elements of `view` in C order. Calls `visit` once for a contiguous tensor, never for an empty one, and
/// otherwise once per part. Runs are as long as the strides allow. Throws InvalidArgument unless the tensor is in this
/// machine's memory.
void for_each_runs(const TensorView& view, const std::function<void(const Runs&)>& visit);

/// Like copy_elements() in tensor.h, for a caller that knows how much else is copied with it and therefore chooses the
/// mode.
void copy_elements(const TensorView& from, std::byte* to, CopyMode way);

/// Returns whether dtype, shape and the bits of the elements are equal, regardless of strides. CPU only, as
/// for_each_runs().
bool same_elements(const TensorView& a, const TensorView& b);

}  // namespace levada
