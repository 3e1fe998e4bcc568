// Packs tensors of different lengths into one row.
#pragma once

#include <cstdint>
#include <span>

#include "levada/tensor/tensor.h"

namespace levada {

/// Throws InvalidArgument, which names the first offending tensor, unless all tensors have the same dtype, with
/// whole-byte elements, and the same extents except for the first.
void check_segments(std::span<const TensorView> segments);

/// Copies segments that check_segments() accepts into `row`, whose size determines its number of positions. begins[i]
/// is the first position of segment i; begins must ascend, and segments must not overlap. Fills the other positions
/// with `padding`, the bytes of one element, or with zeros if `padding` is empty. CPU only. Counts the bytes as copied
/// payload.
void pack_row(std::span<const TensorView> segments, std::span<const std::int64_t> begins, ByteView padding,
              std::span<std::byte> row);

}  // namespace levada
