#include "levada/engine/p2p/group.h"

#include <fmt/format.h>

#include <algorithm>

namespace levada::p2p {

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

}  // namespace levada::p2p
