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

/// One connection per pair of hosts, distributed among the ranks of each host. Nothing is sent on it: the kernels at
/// both ends probe it by TCP keepalive, whatever the processes do. A rank that sees a host fall silent notifies the
/// other ranks of its job (p2p::Receiver::lost()).
class HostWatch {
 public:
  /// The ranks of a host that does not answer.
  struct Silence {
    std::vector<int> ranks;
    std::string text;
  };

  /// `secret` is the same on all ranks, and known only to them. Throws EngineError if the system provides no port or
  /// thread.
  HostWatch(const Secret& secret, int rank, const std::vector<int>& host_of);
  const Place& place() const { return acceptor_.place(); }
  /// Makes this rank's share of the connections. `places`: by rank, for all ranks. Throws EngineError if a rank cannot
  /// be reached by the deadline, with that rank and the reason.
  void connect(const std::vector<Place>& places, Deadline deadline);
  /// Starts to watch, once connect() has returned on all ranks. A host is silent if it has not answered for this many
  /// seconds, at least 3.
  void start(int seconds);
  /// Returns the number of hosts that this rank watches. Any thread.
  std::size_t num_watched();
  /// Returns the hosts that have fallen silent since start(). Any thread.
  std::vector<Silence> silences();

 private:
  struct Watched {
    UniqueFd connection;  ///< empty once the connection has ended
    Address address{};    ///< the other end's, which cannot be queried after the end
    std::vector<int> ranks;
    bool is_overdue = false;  ///< at the last check
  };

  /// Whether a connection has ended, or should have: the kernel does not end one while the interface of this host
  /// accepts no packets, because such probes do not count. `looks`: an interval has passed. Two checks decide, because
  /// the probes of a machine that was suspended need a moment. With mutex_ held.
  bool has_ended(Watched& watched, bool looks);

  const Secret secret_;
  const int rank_;
  const std::size_t host_;
  const std::vector<std::vector<int>> ranks_of_;  ///< by host
  Acceptor acceptor_;
  std::vector<HostLink> called_;
  std::mutex mutex_;  // guards what follows
  Duration silence_{}, interval_{};
  Clock::time_point next_look_{};
  std::vector<Watched> watched_;
  std::vector<Silence> silences_;
};

}  // namespace levada::mpi
