// Sizes of memory, for tests.
#pragma once

#include <cstdint>

#include "levada/engine/arena.h"

namespace levada {

inline constexpr std::uint64_t page = Arena::page_bytes;
inline constexpr std::uint64_t mib = std::uint64_t{1} << 20;

}  // namespace levada
