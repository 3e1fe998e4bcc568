#include "levada/engine/membership.h"

#include <algorithm>

namespace levada {
namespace {

bool has(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

void Membership::enter_oneself(std::span<const std::uint64_t> groups) {
  for (const std::uint64_t parent : groups.subspan(1)) ++groups_[parent].num_subgroups;
}

void Membership::leave_oneself(std::span<const std::uint64_t> groups, std::size_t num_others) {
  groups_[groups.front()].num_others = num_others;
  for (const std::uint64_t parent : groups.subspan(1)) --groups_[parent].num_subgroups;
  for (const std::uint64_t group : groups) forget_if_over(group);
}

void Membership::forget_if_over(std::uint64_t group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  const GroupState& state = found->second;
  if (state.num_others && state.num_subgroups == 0 && state.left.size() >= *state.num_others) groups_.erase(found);
}

bool Membership::has_left(std::span<const std::uint64_t> groups, int rank) const {
  for (const std::uint64_t group : groups) {
    const auto found = groups_.find(group);
    if (found == groups_.end()) continue;
    if (has(found->second.left, rank)) return true;
    if (has(found->second.staying, rank)) return false;
  }
  return false;
}

bool Membership::has_left_oneself(std::uint64_t group) const {
  const auto found = groups_.find(group);
  return found != groups_.end() && found->second.num_others.has_value();
}

}  // namespace levada
