// The inputs of a reduction: validation, division among ranks, and copying.
#pragma once

#include <span>

#include "levada/base/copy.h"
#include "levada/tensor/tensor.h"

namespace levada {

/// Throws InvalidArgument if the tensor is on a device.
void check_cpu(const TensorView& input);

/// Calls check_cpu(). Throws Unsupported for elements smaller than a byte, because those of all ranks are concatenated.
void check_gatherable(const TensorView& input);

/// Throws InvalidArgument, naming the position, unless there is one input for each rank, all of one shape and dtype.
void check_alike(std::span<const TensorView> inputs, int ranks);

/// Returns the shape of each rank's part along dim 0, with padding as in FullyShardedDataParallel. Throws
/// InvalidArgument for a tensor without dimensions.
Shape part_of(const Shape& shape, int ranks);
/// Returns the total size of such a part for each rank.
std::size_t bytes_of(DType dtype, const Shape& piece, int ranks);
/// Copies the elements of `input` to `to`, followed by zeros up to `bytes` in total.
void copy_padded(const TensorView& input, std::size_t bytes, std::byte* to, CopyMode mode);

}  // namespace levada
