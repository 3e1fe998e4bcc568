// What a rank knows of one channel, and of one group.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/engine/group.h"
#include "levada/engine/ranks.h"
#include "levada/engine/shm/control.h"
#include "levada/engine/shm/fifo.h"

namespace levada::shm {

/// One channel, from the moment that this rank opens it or that something arrives for it, until all its ends are
/// closed. Ranks are the host's. Guarded by its Member's mutex.
struct Stream {
  explicit Stream(std::uint64_t its_key) : key(its_key) {}

  std::uint64_t key;
  std::vector<std::uint64_t> groups;  ///< Group::keys of its group
  bool opened = false;
  int from = -1;
  std::vector<int> to;
  int window = 0;

  // The taker's end.
  bool takes = false;   ///< this rank is a taker ...
  bool taking = false;  ///< ... and has not closed
  int arrived_from = -1;
  Fifo<Descriptor> arrived;
  bool sender_closed = false;
  std::atomic<bool> writes_much = false;  ///< this rank, to private views: copies are cheaper. Any thread

  // The sender's end.
  bool sends = false;
  bool sending = false;
  struct Sent {
    std::uint32_t slot = 0;
    std::uint32_t generation = 0;
  };
  Fifo<Sent> outstanding;  ///< not yet taken by all
  std::vector<int> closed_takers;

  bool taker_closed(int rank) const { return rank_in(closed_takers, rank) >= 0; }
};

/// A group as one of its members sees it. Guarded by its Member's mutex.
struct Group : GroupState {
  explicit Group(GroupState state) : GroupState(std::move(state)) {}

  std::uint64_t seen = 0;  ///< the Member's news that `cause` is up to date with
};

}  // namespace levada::shm
