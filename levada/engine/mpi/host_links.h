// TCP connections between ranks of different hosts. Both ends first prove that they are ranks of the job, as follows.
// Nothing is sent afterwards.
//
// clang-format off
//   listener to caller   a greeting (LinkProof)
//   caller to listener   a greeting, and the ranks of both, sealed
//   listener to caller   an empty frame, sealed
// clang-format on
//
// Any other process that connects to a rank is dropped and delays nothing: the number of strangers and the time that
// each of them has are bounded.
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

/// The addresses at which a rank listens. Sent to the other ranks as raw bytes.
struct Place {
  std::array<Address, 8> addresses{};
  std::uint32_t num_addresses = 0;
  std::uint32_t port = 0;
};

struct HostLink {
  int rank = -1;  ///< rank at the other end
  UniqueFd connection;
};

/// Accepts connections from other ranks on its own thread until stopped.
class Acceptor {
 public:
  static constexpr std::size_t max_strangers = 64;

  /// Throws EngineError if the system provides no port or no thread.
  Acceptor(const Secret& secret, int rank);
  ~Acceptor() { static_cast<void>(stop()); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  const Place& place() const { return place_; }
  /// Stops accepting. Returns the connections of the ranks that have connected; those ranks may have closed some of
  /// them.
  std::vector<HostLink> stop();

 private:
  /// A process that has connected but not yet proven that it is a rank.
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
  std::vector<Stranger> strangers_;  ///< oldest first; owned by the thread while it runs
  std::vector<HostLink> links_;      ///< same as strangers_
  std::thread thread_;
};

/// Returns a connection to each of these ranks. If one cannot be reached by the deadline, throws EngineError with its
/// rank, every address that was tried, the system's errors, and the remedy.
std::vector<HostLink> call_all(const std::map<int, Place>& places, const Secret& secret, int rank, Deadline deadline);

}  // namespace levada::mpi
