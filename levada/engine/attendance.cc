#include "levada/engine/attendance.h"

#include <algorithm>

namespace levada {
namespace {

bool has(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

void Attendance::enter_oneself(std::span<const std::uint64_t> groups) {
  for (const std::uint64_t whole : groups.subspan(1)) ++groups_[whole].parts;
}

void Attendance::leave_oneself(std::span<const std::uint64_t> groups, std::size_t others) {
  groups_[groups.front()].others = others;
  for (const std::uint64_t whole : groups.subspan(1)) --groups_[whole].parts;
  for (const std::uint64_t group : groups) forget_if_over(group);
}

void Attendance::forget_if_over(std::uint64_t group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  const Heard& heard = found->second;
  if (heard.others && heard.parts == 0 && heard.left.size() >= *heard.others) groups_.erase(found);
}

bool Attendance::has_left(std::span<const std::uint64_t> groups, int rank) const {
  for (const std::uint64_t group : groups) {
    const auto found = groups_.find(group);
    if (found == groups_.end()) continue;
    if (has(found->second.left, rank)) return true;
    if (has(found->second.entered, rank)) return false;
  }
  return false;
}

}  // namespace levada
