#include "levada/engine/group.h"

#include <numeric>

#include "levada/base/bytes.h"
#include "levada/base/hash.h"
#include "levada/engine/ranks.h"

namespace levada {

int Group::rank_of(int endpoint_rank) const {
  return rank_in(ranks, endpoint_rank);
}

void Group::check() const {
  if (cause) cause->raise();
}

void Group::check_aborted() const {
  if (aborted) check();
}

Group root_group(std::string_view name, int rank, int size) {
  Group group;
  group.keys = {hash64(as_bytes(name))};
  group.ranks.resize(static_cast<std::size_t>(size));
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  group.rank = rank;
  return group;
}

Group subgroup_of(const Group& parent, KeyDeriver& keys, std::span<const int> ranks, std::string_view name) {
  Group group;
  group.rank = check_subgroup(parent.rank, static_cast<int>(parent.ranks.size()), ranks);
  group.keys = parent.keys;
  group.keys.insert(group.keys.begin(), keys.subgroup(ranks, name));
  for (const int rank : ranks) group.ranks.push_back(parent.endpoint_rank(rank));
  return group;
}

}  // namespace levada
