// The state that a rank keeps for each of its groups. No locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/engine.h"

namespace levada {

class KeyDeriver;

/// An event that ends one or more groups, as reported by a medium.
struct Ending {
  ErrorKind kind = ErrorKind::engine;  ///< engine or timeout (an abort), peer_lost, corrupt_message, invalid_argument
  std::uint64_t group = 0;  ///< for an abort and invalid_argument: the group that ends, with all made from it; 0: all
                            ///< groups
  int rank = -1;            ///< the rank at fault, in the endpoint's numbering
  std::string detail;       ///< Cause::detail
};

/// Returns whether one group or all groups have ended, rather than one rank.
inline bool is_abort(const Ending& ending) {
  return ending.kind == ErrorKind::engine || ending.kind == ErrorKind::invalid_argument ||
         ending.kind == ErrorKind::timeout;
}

/// Maximum size of a detail that is sent between ranks.
inline constexpr std::size_t max_detail_bytes = 600;

/// One member's view of a group. Must not move between ChannelTable::enter() and leave().
struct Group {
  std::vector<std::uint64_t> keys;  ///< the group's key, followed by those of the groups that it was made from
  std::vector<int> ranks;           ///< its members, in the endpoint's numbering
  int rank = 0;                     ///< this rank's number in the group

  std::optional<Cause> cause;  ///< first cause, which its calls throw
  bool aborted = false;        ///< whether even messages that have arrived can no longer be received
  std::size_t num_seen = 0;    ///< number of endings that ChannelTable::refresh() has applied

  std::uint64_t key() const { return keys.front(); }
  bool is_root() const { return keys.size() == 1; }
  /// Converts a rank from the endpoint's numbering to the group's. Returns -1 if it is not a member.
  int rank_of(int endpoint_rank) const;
  /// Converts a rank from the group's numbering to the endpoint's.
  int endpoint_rank(int its_rank) const { return ranks[static_cast<std::size_t>(its_rank)]; }
  /// Throws the cause, if there is one.
  void check() const;
  /// Throws the cause if even messages that have arrived can no longer be received.
  void check_aborted() const;
};

/// Returns the group of all ranks from 0 to size-1. `name` distinguishes its channels from those of other such groups.
Group root_group(std::string_view name, int rank, int size);
/// Returns a group of some of the parent's ranks. Validates its arguments as Engine::subgroup() does.
Group subgroup_of(const Group& parent, KeyDeriver& keys, std::span<const int> ranks, std::string_view name);

}  // namespace levada
