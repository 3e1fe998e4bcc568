// What a member knows of its group, in engines whose members share no memory for that.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/error.h"

namespace levada {

class Naming;

/// Why an engine's calls throw, and what.
struct Cause {
  ErrorKind kind = ErrorKind::engine;
  int lost = -1;  ///< of peer_lost: who, in the numbering of the engine that throws
  std::string message;

  static Cause of(const Error& error);
  [[noreturn]] void raise() const { throw_error(kind, message, lost); }
};

/// A group as one of its members sees it. State alone, without locks.
struct GroupState {
  std::vector<std::uint64_t> keys;  ///< its own first, then those of the groups that it was made from
  std::vector<int> ranks;           ///< its members, in the numbering of the group of all
  int rank = 0;                     ///< this one's number in it
  std::optional<Cause> cause;       ///< why its calls throw: whichever came first
  bool aborted = false;             ///< so that even messages that have arrived cannot be received any more

  std::uint64_t key() const { return keys.front(); }
  /// The number in it of a rank of the group of all; -1 for one that is not in it.
  int rank_of(int outer) const;
  /// The number in the group of all.
  int outer(int its_rank) const { return ranks[static_cast<std::size_t>(its_rank)]; }
  /// Throws the cause, if there is one.
  void check() const;
  void check_aborted() const;
};

/// Of all ranks from 0 to size-1. `name` tells its channels from those of other groups of all.
GroupState group_of_all(std::string_view name, int rank, int size);
/// A group of some of these ranks, as Engine::subgroup() takes them and throws.
GroupState subgroup_of(const GroupState& group, Naming& naming, std::span<const int> ranks, std::string_view name);

}  // namespace levada
