// Connections over TCP between ranks of different hosts, on which nothing is sent once both ends have proven that they
// are ranks of the job:
//
// clang-format off
//   listener to caller   a greeting (LinkProof)
//   caller to listener   a greeting, and the ranks of both, sealed
//   listener to caller   an empty frame, sealed
// clang-format on
//
// Whatever else connects to a rank is dropped and holds up nothing: the number of strangers and the time that each has
// are bounded.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <thread>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"
#include "levada/base/secret.h"
#include "levada/base/unique_fd.h"
#include "levada/engine/link_proof.h"
#include "levada/engine/mpi/tcp.h"

namespace levada::mpi {

/// Where a rank listens; sent to the others as it is.
struct Place {
  std::array<Address, 8> addresses{};
  std::uint32_t num_addresses = 0;
  std::uint32_t port = 0;
};

struct HostLink {
  int rank = -1;  ///< at the other end
  UniqueFd connection;
};

/// Accepts the connections of other ranks, by a thread, until it is stopped.
class Acceptor {
 public:
  static constexpr std::size_t max_strangers = 64;

  /// Throws EngineError if the system gives no port or no thread.
  Acceptor(const Secret& secret, int rank);
  ~Acceptor() { static_cast<void>(stop()); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  const Place& place() const { return place_; }
  /// Stops accepting. Returns the connections of the ranks that have called, of which the caller may have closed some.
  std::vector<HostLink> stop();

 private:
  /// Whoever has connected and has proven nothing yet.
  struct Stranger {
    UniqueFd connection;
    LinkProof proof;
    Bytes received;
    Deadline until;
  };
  enum class Answer { incomplete, rank, stranger };

  void run();
  void accept_one();
  Answer receive(Stranger& stranger);

  const Secret secret_;
  const int rank_;
  UniqueFd listener_;
  Place place_;
  std::atomic<bool> is_stopped_ = false;
  std::vector<Stranger> strangers_;  ///< the thread's, as long as it runs; the oldest first
  std::vector<HostLink> links_;      ///< as strangers_
  std::thread thread_;
};

/// Returns a connection to each of these ranks. Throws EngineError, which names one that cannot be reached by the
/// deadline, every address that was tried, what the system said, and the remedy.
std::vector<HostLink> call_all(const std::map<int, Place>& places, const Secret& secret, int rank, Deadline deadline);

}  // namespace levada::mpi
