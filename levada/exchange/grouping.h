// The order in which a plan's multicasts and their samples stand. For this module's sources alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace levada {

/// Orders `order` by group[i] of each of its entries i; those of one group keep their order. Groups are below `groups`.
/// A counting sort: linear.
void stable_sort_by(std::vector<std::uint32_t>& order, std::span<const std::uint32_t> group, std::size_t groups);

}  // namespace levada
