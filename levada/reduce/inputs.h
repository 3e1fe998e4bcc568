// What a rank may give to a reduction.
#pragma once

#include <span>

#include "levada/base/copy.h"
#include "levada/tensor/tensor.h"

namespace levada {

/// Throws InvalidArgument unless it lies in this machine's memory.
void check_cpu(const TensorView& input);

/// check_cpu(), and Unsupported where elements do not begin on bytes, as those of all ranks lie one after the other.
void check_gatherable(const TensorView& input);

/// Throws InvalidArgument, naming the position, unless `inputs` are one a rank and all alike.
void check_alike(std::span<const TensorView> inputs, int ranks);

/// Of the part along dim 0 that each rank gets, padded as FullyShardedDataParallel pads. Throws InvalidArgument where
/// there is no dimension.
Shape part_of(const Shape& shape, int ranks);
/// Bytes of one such part for each rank.
std::size_t bytes_of(DType dtype, const Shape& piece, int ranks);
/// Copies the elements of `input` to `to`, one after the other, and writes zeros behind them, `bytes` in all.
void copy_padded(const TensorView& input, std::size_t bytes, std::byte* to, CopyMode way);

}  // namespace levada
