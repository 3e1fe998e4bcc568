#include "levada/engine/p2p/group.h"

#include <fmt/format.h>

#include <algorithm>

namespace levada::p2p {
namespace {

bool has(const auto& range, const auto& value) {
  return std::find(range.begin(), range.end(), value) != range.end();
}

}  // namespace

int Group::rank_of(int wire_rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), wire_rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

void Group::apply(const End& end) {
  if (end.kind == ErrorKind::engine) {
    if (!has(keys, end.group)) return;
    aborted = true;
    if (!cause) cause = Cause{end.kind, -1, fmt::format("rank {} aborted: {}", end.rank, end.text)};
    return;
  }
  const int theirs = rank_of(end.rank);
  if (theirs < 0 || cause) return;
  if (end.kind == ErrorKind::peer_lost) {
    cause = Cause{end.kind, theirs,
                  fmt::format("rank {} ended without leaving, its own output may say why ({})", theirs, end.text)};
  } else {
    cause = Cause{end.kind, -1, fmt::format("rank {} sent what no rank sends: {}", theirs, end.text)};
  }
}

void Group::check() const {
  if (!cause) return;
  if (cause->kind == ErrorKind::peer_lost) throw PeerLost(cause->lost, cause->message);
  throw_error(cause->kind, cause->message);
}

void Attendance::leave(std::uint64_t group, int rank) {
  groups_[group].left.push_back(rank);
  forget_if_over(group);
}

void Attendance::forget_after(std::uint64_t group, std::size_t others) {
  groups_[group].others = others;
  forget_if_over(group);
}

void Attendance::forget_if_over(std::uint64_t group) {
  const auto found = groups_.find(group);
  const Heard& heard = found->second;
  if (heard.others && heard.left.size() >= *heard.others) groups_.erase(found);
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

}  // namespace levada::p2p
