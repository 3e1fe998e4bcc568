// The header of an .idx. It is followed, little-endian and unaligned, by a length (int32, in tokens) for each sequence,
// an offset (int64, in bytes of the .bin) for each, document indices (int64: the number of each document's first
// sequence, and finally the total number of sequences) and optionally a mode (int8) for each sequence.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "levada/tensor/dtype.h"

namespace levada::megatron {

inline constexpr std::string_view magic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t version = 1;
/// magic, version (u64), dtype (u8), number of sequences and of document indices (u64 each).
inline constexpr std::size_t header_bytes = magic.size() + 8 + 1 + 8 + 8;
inline constexpr std::int64_t max_sequence = std::numeric_limits<std::int32_t>::max();

/// Codes start at 1.
inline constexpr std::array dtype_codes = {dtypes::uint8, dtypes::int8,    dtypes::int16,   dtypes::int32,
                                           dtypes::int64, dtypes::float64, dtypes::float32, dtypes::uint16};

}  // namespace levada::megatron
