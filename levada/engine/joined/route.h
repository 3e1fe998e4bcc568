// Which way the messages of a channel take to ranks on several hosts. Pure.
#pragma once

#include <span>
#include <vector>

namespace levada::joined {

/// A channel of one of the two engines; without receivers: none. Ranks are the job's.
struct Leg {
  int from = -1;
  std::vector<int> to;
  explicit operator bool() const { return !to.empty(); }
  bool operator==(const Leg&) const = default;
};

/// What one rank opens for a channel. The sender sends on its own host, and to one receiver on each other host, which
/// sends what it receives to the others there. Where there are more than `degree` other hosts, these receivers form a
/// tree, in which none sends to more than `degree` others.
struct Route {
  Leg near;      ///< on this rank's host
  Leg incoming;  ///< to this rank and others, from another host
  Leg outgoing;  ///< from this rank, to other hosts
  /// Whether this rank sends on what comes in.
  bool forwards() const { return incoming && (near || outgoing); }
  /// To whom `rank`, whose route this is, sends on what comes in.
  std::vector<int> forwards_to(int rank) const;
  /// Who forwards to `rank` what `from` sends; -1 if `from` sends to it directly, or `rank` itself sends on what comes
  /// in.
  int forwarder(int rank, int from) const;
  bool operator==(const Route&) const = default;
};

/// `host_of`: each rank's host. `rank` is the sender or a receiver. The same `to` in any order gives the same legs.
Route route_of(std::span<const int> host_of, int rank, int from, std::span<const int> to, int degree);

}  // namespace levada::joined
