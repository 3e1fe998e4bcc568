#include "levada/engine/group.h"

#include <numeric>

#include "levada/base/bytes.h"
#include "levada/base/hash.h"
#include "levada/engine/ranks.h"

namespace levada {

Cause Cause::of(const Error& error) {
  const auto* lost = dynamic_cast<const PeerLost*>(&error);
  return {.kind = error.kind(), .lost = lost != nullptr ? lost->rank() : -1, .message = error.what()};
}

int GroupState::rank_of(int outer) const {
  return rank_in(ranks, outer);
}

void GroupState::check() const {
  if (cause) cause->raise();
}

void GroupState::check_aborted() const {
  if (aborted) check();
}

GroupState group_of_all(std::string_view name, int rank, int size) {
  GroupState group;
  group.keys = {hash64(as_bytes(name))};
  group.ranks.resize(static_cast<std::size_t>(size));
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  group.rank = rank;
  return group;
}

GroupState subgroup_of(const GroupState& group, Naming& naming, std::span<const int> ranks, std::string_view name) {
  GroupState part;
  part.rank = check_subgroup(group.rank, static_cast<int>(group.ranks.size()), ranks);
  part.keys = group.keys;
  part.keys.insert(part.keys.begin(), naming.subgroup(ranks, name));
  for (const int rank : ranks) part.ranks.push_back(group.outer(rank));
  return part;
}

}  // namespace levada
