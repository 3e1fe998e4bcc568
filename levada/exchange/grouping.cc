#include "levada/exchange/grouping.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "levada/exchange/id_table.h"

namespace levada {
namespace {

/// Brings the units of each group together, in the order that they have; gives where each group ends.
std::vector<std::size_t> bring_together(std::vector<Grouped>& units) {
  struct Group {
    std::uint64_t group = 0;
    std::size_t count = 0;
    std::size_t next = 0;
  };
  std::unordered_map<std::uint64_t, std::uint32_t> numbers;  // looked up, never walked over
  std::vector<Group> groups;
  std::vector<std::uint32_t> group_of(units.size());
  for (std::size_t i = 0; i < units.size(); ++i) {
    const auto [number, is_new] = numbers.try_emplace(units[i].group, static_cast<std::uint32_t>(groups.size()));
    if (is_new) groups.push_back({units[i].group});
    group_of[i] = number->second;
    ++groups[number->second].count;
  }
  std::vector<std::uint32_t> ascending(groups.size());
  std::iota(ascending.begin(), ascending.end(), 0u);
  std::ranges::sort(ascending, {}, [&](std::uint32_t number) { return groups[number].group; });
  std::vector<std::size_t> ends;
  for (const std::uint32_t number : ascending) {
    groups[number].next = ends.empty() ? 0 : ends.back();
    ends.push_back(groups[number].next + groups[number].count);
  }
  std::vector<Grouped> together(units.size());
  for (std::size_t i = 0; i < units.size(); ++i) together[groups[group_of[i]].next++] = units[i];
  units = std::move(together);
  return ends;
}

}  // namespace

std::vector<Grouped> by_group_and_id(std::vector<Grouped> units, const Ownership& samples) {
  IdPrefix prefix;
  for (const Grouped& unit : units) prefix.see(samples.id(unit.sample));
  for (Grouped& unit : units) unit.prefix = prefix.of(samples.id(unit.sample));
  const auto before = [&](const Grouped& a, const Grouped& b) {
    if (a.prefix != b.prefix) return a.prefix < b.prefix;
    return a.sample != b.sample && samples.id(a.sample) < samples.id(b.sample);
  };
  std::size_t begin = 0;
  for (const std::size_t end : bring_together(units)) {
    const auto group = std::span(units).subspan(begin, end - begin);
    if (!std::ranges::is_sorted(group, before)) std::ranges::stable_sort(group, before);
    begin = end;
  }
  return units;
}

}  // namespace levada
