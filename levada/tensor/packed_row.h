// Packs tensors of different lengths into one row.
#pragma once

#include <cstdint>
#include <span>

#include "levada/tensor/tensor.h"

namespace levada {

/// Throws InvalidArgument, which names the first offender, unless all tensors have one dtype with whole-byte elements
/// and the same extents except the first.
void check_segments(std::span<const TensorView> segments);

/// Copies segments that check_segments() accepts into a row, whose size in bytes determines its number of positions:
/// begins[i] is the first position of segment i. Begins ascend and segments do not overlap. Other positions are filled
/// with `padding`, the bytes of one element, or with zeros if it is empty. CPU only; counted as payload copied.
void pack_row(std::span<const TensorView> segments, std::span<const std::int64_t> begins, ByteView padding,
              std::span<std::byte> row);

}  // namespace levada
