// What a rank knows of one channel.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "levada/engine/engine.h"

namespace levada::p2p {

/// A message that has come.
struct Arrived {
  ByteView bytes;
  std::shared_ptr<const void> hold;  ///< the block in which it lies
};

/// One channel, from the moment that this rank opens it or that something comes for it, until all its ends are closed.
/// State alone, guarded by its Member's mutex. Ranks are the wire's.
struct Stream {
  explicit Stream(std::uint64_t its_key) : key(its_key) {}

  /// What open() tells of it.
  struct Terms {
    std::vector<std::uint64_t> groups;  ///< its group's key, and those of the groups that this was made from
    int from = -1;
    std::vector<int> to;
    int window = 0;
  };
  void open(Terms its_terms, int rank);

  std::uint64_t key;
  bool opened = false;
  Terms terms;

  // The taker's end.
  bool takes = false;   ///< this rank is a taker ...
  bool taking = false;  ///< ... and has not closed
  int heard_from = -1;  ///< who sent what came before it was opened
  std::deque<Arrived> arrived;
  std::uint64_t taken = 0;
  bool sender_waits = false;  ///< has been seen to wait for room
  bool sender_closed = false;

  // The sender's end.
  struct Taker {
    int rank = 0;
    bool closed = false;
    std::uint64_t taken = 0;
    bool operator==(int its_rank) const { return rank == its_rank; }
  };
  bool sends = false;
  bool sending = false;
  std::uint64_t sent = 0;
  bool said_to_wait = false;  ///< the takers know
  std::vector<Taker> takers;
  std::vector<int> closed_early;  ///< takers that had closed before this rank opened it
  std::shared_ptr<std::atomic<int>> leased_here = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<int>> under_way = std::make_shared<std::atomic<int>>(0);  ///< bodies that the wire holds

  Taker* taker(int rank);
  /// Messages that `taker` has still to take.
  int not_received(const Taker& taker) const { return static_cast<int>(sent - taker.taken); }
};

}  // namespace levada::p2p
