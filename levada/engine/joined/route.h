// Computes the routes that a channel's messages take to ranks on several hosts. Pure functions.
#pragma once

#include <span>
#include <vector>

namespace levada::joined {

/// A channel of one of the two engines. A hop without receivers does not exist. Ranks are in the job's numbering.
struct Hop {
  int from = -1;
  std::vector<int> to;
  explicit operator bool() const { return !to.empty(); }
  bool operator==(const Hop&) const = default;
};

/// The hops that one rank opens for a channel. The sender sends to the receivers on its own host and to one receiver on
/// each other host, which forwards to the other receivers there. If there are more than `degree` other hosts, these
/// receivers form a tree in which none sends to more than `degree` others.
struct Route {
  Hop near;      ///< on this rank's host
  Hop incoming;  ///< to this rank and others, from another host
  Hop outgoing;  ///< from this rank, to other hosts
  /// Returns whether this rank forwards incoming messages.
  bool forwards() const { return incoming && (near || outgoing); }
  /// Returns the ranks to which `rank` forwards incoming messages. `rank` is the rank whose route this is.
  std::vector<int> forwards_to(int rank) const;
  /// Returns the rank that forwards messages from `from` to `rank`, or -1 if `from` sends to `rank` directly or `rank`
  /// itself forwards incoming messages.
  int forwarder(int rank, int from) const;
  bool operator==(const Route&) const = default;
};

/// Returns the route of `rank`, which is the sender or a receiver. `host_of` is each rank's host. The order of `to`
/// does not matter.
Route route_of(std::span<const int> host_of, int rank, int from, std::span<const int> to, int degree);

}  // namespace levada::joined
