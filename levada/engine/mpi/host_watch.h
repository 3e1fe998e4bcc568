// Whether other hosts still answer, which MPI does not say.
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

/// One connection for each two hosts, which the ranks of a host share among them. Nothing is sent on it: the systems at
/// both ends check it by keepalive probes, whatever the processes do. A rank that sees a host fall silent tells the
/// others of its job (p2p::Receiver::lost()).
class HostWatch {
 public:
  /// Ranks of one host that does not answer.
  struct Silence {
    std::vector<int> ranks;
    std::string text;
  };

  /// `secret` is the same on all ranks, and only they know it. Throws EngineError if the system gives no port or
  /// thread.
  HostWatch(const Secret& secret, int rank, const std::vector<int>& host_of);
  const Place& place() const { return acceptor_.place(); }
  /// Makes the connections that are this rank's to make. `places` are those of all ranks. Throws EngineError, which
  /// names a rank that cannot be reached by the deadline, and why.
  void connect(const std::vector<Place>& places, Deadline deadline);
  /// Begins to watch, once connect() has returned on all ranks. A host is silent that has not answered for so many
  /// seconds, at least 3.
  void start(int seconds);
  /// Returns how many hosts this rank watches. Any thread.
  std::size_t num_watched();
  /// Returns the hosts that have fallen silent since start(). Any thread.
  std::vector<Silence> silences();

 private:
  struct Watched {
    UniqueFd connection;  ///< empty once it has ended
    Address address{};    ///< of the other end, which an ended connection does not know
    std::vector<int> ranks;
    bool is_overdue = false;  ///< at the last look
  };

  /// Whether a connection has ended, or should have: the system does not end one while the interface of this host takes
  /// no packets, as such probes do not count. `looks`: an interval has passed. Two looks decide, since a machine that
  /// was suspended needs a moment for its probes. With mutex_ held.
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
