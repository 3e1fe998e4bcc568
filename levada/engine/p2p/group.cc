#include "levada/engine/p2p/group.h"

#include <fmt/format.h>

#include <algorithm>

namespace levada::p2p {

int Group::rank_of(int wire_rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), wire_rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

void Group::apply(const End& end) {
  if (end.kind == ErrorKind::engine) {
    if (std::find(keys.begin(), keys.end(), end.group) == keys.end()) return;
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

}  // namespace levada::p2p
