// What a rank knows of one of its groups. State alone, without locks.
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

/// Something that ends groups, as a medium reports it.
struct Ending {
  ErrorKind kind = ErrorKind::engine;  ///< engine, timeout: an abort; peer_lost; corrupt_message; invalid_argument
  std::uint64_t group = 0;  ///< of an abort, invalid_argument: that group and those made from it; 0: all groups
  int rank = -1;            ///< whose act, end or fault, in the endpoint's numbering
  std::string detail;       ///< Cause::detail
};

/// Whether it ends one group, or all, and not one rank.
inline bool is_abort(const Ending& ending) {
  return ending.kind == ErrorKind::engine || ending.kind == ErrorKind::invalid_argument ||
         ending.kind == ErrorKind::timeout;
}

/// The longest detail that crosses between ranks.
inline constexpr std::size_t max_detail_bytes = 600;

/// A group as one of its members sees it. It stays where it is from ChannelTable::enter() to leave().
struct Group {
  std::vector<std::uint64_t> keys;  ///< its own first, then those of the groups that it was made from
  std::vector<int> ranks;           ///< its members, in the endpoint's numbering
  int rank = 0;                     ///< this one's number in it

  std::optional<Cause> cause;  ///< why its calls throw: whichever came first
  bool aborted = false;        ///< messages that have arrived cannot be received any more either
  std::size_t num_seen = 0;    ///< endings that ChannelTable::refresh() has applied

  std::uint64_t key() const { return keys.front(); }
  bool is_root() const { return keys.size() == 1; }
  /// The number in it of a rank in the endpoint's numbering; -1 for one that is not in it.
  int rank_of(int endpoint_rank) const;
  /// The number in the endpoint's numbering.
  int endpoint_rank(int its_rank) const { return ranks[static_cast<std::size_t>(its_rank)]; }
  /// Throws the cause, if there is one.
  void check() const;
  /// Throws it where not even messages that have arrived can be received.
  void check_aborted() const;
};

/// Of all ranks from 0 to size-1. `name` distinguishes its channels from those of other groups of all.
Group root_group(std::string_view name, int rank, int size);
/// A group of some of these ranks, as Engine::subgroup() accepts and refuses them.
Group subgroup_of(const Group& parent, KeyDeriver& keys, std::span<const int> ranks, std::string_view name);

}  // namespace levada
