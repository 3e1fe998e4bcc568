// What a rank knows of its groups, and why they have ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/engine.h"

namespace levada::p2p {

/// Something that ends groups, in the order in which this rank has heard of it.
struct End {
  ErrorKind kind = ErrorKind::engine;  ///< engine: an abort; peer_lost; corrupt_message
  std::uint64_t group = 0;             ///< of an abort: that group and those made from it
  int rank = -1;                       ///< whose end or fault it is: the wire's rank; of an abort the group's
  std::string text;                    ///< the reason, or how it was seen
};

/// A group as one of its members sees it; stays where it is from entering to leaving. Guarded by its Member's mutex.
struct Group {
  std::vector<std::uint64_t> keys;  ///< its own first, then those of the groups that it was made from
  std::vector<int> ranks;           ///< the wire's number of each
  int rank = 0;                     ///< this one's number in it
  std::size_t seen = 0;             ///< ends that have been applied

  /// Why its calls throw: whichever came first.
  struct Cause {
    ErrorKind kind;
    int lost;
    std::string message;
  };
  std::optional<Cause> cause;
  bool aborted = false;

  /// The board. What a rank posts stays with it until another asks.
  struct Seat {
    Status status{};     ///< this rank's own, or what has been heard of another's
    bool asked = false;  ///< and not answered yet
  };
  std::vector<Seat> seats;
  Seat& seat(int its_rank) { return seats[static_cast<std::size_t>(its_rank)]; }

  std::uint64_t key() const { return keys.front(); }
  /// -1 for one that is not in it.
  int rank_of(int wire_rank) const;
  void apply(const End& end);
  /// Throws the cause, if there is one.
  void check() const;
};

}  // namespace levada::p2p
