// Computes the route that a channel's messages take to ranks on several hosts. Pure.
#pragma once

#include <span>
#include <vector>

namespace levada::joined {

/// A channel of one of the two engines; there is none if it has no receivers. Ranks are the job's.
struct Leg {
  int from = -1;
  std::vector<int> to;
  explicit operator bool() const { return !to.empty(); }
  bool operator==(const Leg&) const = default;
};

/// The legs that one rank opens for a channel. The sender sends on its own host, and to one receiver on each other
/// host, which forwards to the other receivers on that host. If there are more than `degree` other hosts, these
/// receivers form a tree in which none sends to more than `degree` others.
struct Route {
  Leg near;      ///< on this rank's host
  Leg incoming;  ///< to this rank and others, from another host
  Leg outgoing;  ///< from this rank, to other hosts
  /// Whether this rank forwards incoming messages.
  bool forwards() const { return incoming && (near || outgoing); }
  /// Returns the ranks to which `rank`, whose route this is, forwards incoming messages.
  std::vector<int> forwards_to(int rank) const;
  /// Returns the rank that forwards messages of `from` to `rank`; -1 if `from` sends to it directly, or if `rank`
  /// itself forwards incoming messages.
  int forwarder(int rank, int from) const;
  bool operator==(const Route&) const = default;
};

/// Returns the route of `rank`, which is the sender or a receiver. `host_of`: each rank's host. The order of `to` does
/// not matter.
Route route_of(std::span<const int> host_of, int rank, int from, std::span<const int> to, int degree);

}  // namespace levada::joined
