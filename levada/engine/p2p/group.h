// What a rank knows of its groups, and why they have ended.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/engine.h"
#include "levada/engine/group.h"

namespace levada::p2p {

/// Something that ends groups, in the order in which this rank has heard of it.
struct End {
  ErrorKind kind = ErrorKind::engine;  ///< engine: an abort; peer_lost; corrupt_message
  std::uint64_t group = 0;             ///< of an abort: that group and those made from it
  int rank = -1;                       ///< whose end or fault it is: the wire's rank; of an abort the group's
  std::string text;                    ///< the reason, or how it was seen
};

/// A group as one of its members sees it; stays where it is from entering to leaving. Guarded by its Member's mutex.
struct Group : GroupState {
  explicit Group(GroupState state) : GroupState(std::move(state)), board(ranks.size()) {}

  std::size_t seen = 0;  ///< ends that have been applied

  /// What a rank posts stays with it until another asks.
  struct StatusSlot {
    Status status{};     ///< this rank's own, or what has been heard of another's
    bool asked = false;  ///< and not answered yet
  };
  std::vector<StatusSlot> board;  ///< by rank
  StatusSlot& slot(int its_rank) { return board[static_cast<std::size_t>(its_rank)]; }

  void apply(const End& end);
};

}  // namespace levada::p2p
