// Detects hosts that no longer answer, which MPI does not report.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/secret.h"
#include "levada/base/unique_fd.h"
#include "levada/engine/mpi/host_links.h"

namespace levada::mpi {

/// Keeps one connection per pair of hosts, distributed among the ranks of each host. Nothing is sent on a connection:
/// the kernels at both ends probe it by TCP keepalive, regardless of what the processes do. A rank that sees a host
/// fall silent notifies the other ranks of its job (p2p::Receiver::lost()).
class HostWatch {
 public:
  /// The ranks of a host that does not answer.
  struct Silence {
    std::vector<int> ranks;
    std::string text;
  };

  /// `secret` is the same on all ranks and known only to them. Throws EngineError if the system provides no port or no
  /// thread.
  HostWatch(const Secret& secret, int rank, const std::vector<int>& host_of);
  const Place& place() const { return acceptor_.place(); }
  /// Makes this rank's share of the connections. `places` holds every rank's place, by rank. If a rank cannot be
  /// reached by the deadline, throws EngineError with that rank and the reason.
  void connect(const std::vector<Place>& places, Deadline deadline);
  /// Starts watching. Call it once connect() has returned on all ranks. A host is silent if it has not answered for
  /// this many seconds, at least 3.
  void start(int seconds);
  /// Returns the number of hosts that this rank watches. Thread-safe.
  std::size_t num_watched();
  /// Returns the hosts that have fallen silent since start(). Thread-safe.
  std::vector<Silence> silences();

 private:
  struct WatchedHost {
    UniqueFd connection;  ///< empty once the connection has ended
    Address address{};    ///< address of the other end, which cannot be queried once the connection has ended
    std::vector<int> ranks;
    bool is_overdue = false;  ///< at the last check
  };

  /// Returns whether a connection has ended, or should have: while this host's network interface accepts no packets,
  /// the kernel does not end connections, because probes that are not sent do not count. `looks`: whether an interval
  /// has passed. Two checks must agree, because probes need a moment after a machine was suspended. Requires mutex_.
  bool has_ended(WatchedHost& watched, bool looks);

  const Secret secret_;
  const int rank_;
  const std::size_t host_;
  const std::vector<std::vector<int>> ranks_of_;  ///< by host
  Acceptor acceptor_;
  std::vector<HostLink> called_;
  std::mutex mutex_;  // guards the members below
  Duration silence_{}, interval_{};
  Clock::time_point next_look_{};
  std::vector<WatchedHost> watched_;
  std::vector<Silence> silences_;
};

}  // namespace levada::mpi
