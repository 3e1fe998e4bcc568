// Whether other hosts still answer, which MPI does not say.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/unique_fd.h"

namespace levada::mpi {

/// Each rank listens at a TCP port, where it accepts nobody, and connects to a rank of each other host. Nothing is ever
/// sent on these connections: the systems at both ends check them by keepalive probes, whatever the processes do.
class HostWatch {
 public:
  /// Where a rank listens; sent to the others as it is.
  struct Place {
    using Address = std::array<std::uint8_t, 16>;  ///< of IPv6, or of IPv4 mapped into it
    std::array<Address, 8> addresses{};
    std::uint32_t num_addresses = 0;
    std::uint32_t port = 0;
  };
  /// Ranks of one host that does not answer.
  struct Silence {
    std::vector<int> ranks;
    std::string text;
  };

  /// Throws EngineError where no port can be had.
  HostWatch();
  const Place& place() const { return place_; }
  /// `places`: of all ranks. A host is silent that has not answered for so many seconds, at least 3. Throws
  /// EngineError, naming a host to which no connection has been made by the deadline.
  void connect(const std::vector<Place>& places, int rank, const std::vector<int>& host_of, int seconds,
               Deadline deadline);
  /// Returns the hosts that have fallen silent since connect(). Any thread.
  std::vector<Silence> silences();

 private:
  struct Watched {
    UniqueFd connection;  ///< empty once it has ended
    std::string address;  ///< of the other host
    std::vector<int> ranks;
  };

  UniqueFd listener_;
  Place place_;
  std::mutex mutex_;  // guards what follows
  std::vector<Watched> watched_;
  std::vector<Silence> silences_;
};

}  // namespace levada::mpi
