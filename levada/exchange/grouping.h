// The order in which a plan's multicasts and their samples stand. For this module's sources alone.
#pragma once

#include <cstdint>
#include <vector>

#include "levada/exchange/ownership.h"

namespace levada {

struct Grouped {
  std::uint64_t group = 0;
  std::uint32_t sample = 0;
  std::uint32_t unit = 0;    ///< the caller's
  std::uint64_t prefix = 0;  ///< filled in: orders most samples of a group
};

/// By group, then by the samples' ids; what is alike in both keeps its order.
std::vector<Grouped> by_group_and_id(std::vector<Grouped> units, const Ownership& samples);

}  // namespace levada
