// Tensors of different lengths side by side in one row.
#pragma once

#include <cstdint>
#include <span>

#include "levada/tensor/tensor.h"

namespace levada {

/// Throws InvalidArgument, naming the first one, unless all tensors have one dtype, whose elements are whole bytes, and
/// the same extents but for the first.
void check_segments(std::span<const TensorView> segments);

/// Copies segments that check_segments() accepts to a row of as many positions as its size in bytes says: the first
/// position of segment i is begins[i]. Begins ascend and segments do not overlap. Positions that no segment covers are
/// filled with `padding`, the bytes of one element; empty: with zeros. CPU only; counted as payload copied.
void pack_row(std::span<const TensorView> segments, std::span<const std::int64_t> begins, ByteView padding,
              std::span<std::byte> row);

}  // namespace levada
