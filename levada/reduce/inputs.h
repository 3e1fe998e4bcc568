// The inputs of a reduction: which are valid, how they are divided among ranks, and how they are copied.
#pragma once

#include <span>

#include "levada/base/copy.h"
#include "levada/tensor/tensor.h"

namespace levada {

/// Throws InvalidArgument for a tensor on a device.
void check_cpu(const TensorView& input);

/// check_cpu(). Throws Unsupported for elements smaller than a byte, since those of all ranks lie side by side.
void check_gatherable(const TensorView& input);

/// Throws InvalidArgument, naming the position, unless there is one input for each rank, all of one shape and dtype.
void check_alike(std::span<const TensorView> inputs, int ranks);

/// Returns the shape of the part along dim 0 that each rank gets, padded as FullyShardedDataParallel pads. Throws
/// InvalidArgument for a tensor without dimensions.
Shape part_of(const Shape& shape, int ranks);
/// Returns the bytes of one such part for each rank.
std::size_t bytes_of(DType dtype, const Shape& piece, int ranks);
/// Copies the elements of `input` to `to` and writes zeros behind them, `bytes` in all.
void copy_padded(const TensorView& input, std::size_t bytes, std::byte* to, CopyMode mode);

}  // namespace levada
