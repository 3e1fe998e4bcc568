// Ranks as real processes. For tests only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/engine/engine.h"
#include "levada/engine/shm/endpoint.h"
#include "levada/engine/shm/shm.h"

namespace levada::shm::test {

inline Deadline soon() {
  return Deadline::after(std::chrono::seconds(60));
}
inline void expect(bool holds, const std::string& sentence) {
  if (!holds) throw EngineError("it does not hold that " + sentence);
}

/// How a rank's process ended: normally without an exception, with one (its text), or by a signal.
struct Ending {
  bool well = false;
  int signal = 0;
  std::string error;
};

/// Forks one child per rank, each with a pipe through which it reports why it failed. The calling process must be
/// single-threaded.
class ForkedRanks {
 public:
  /// Runs `body` in one process for each rank. An exception of `body` is that rank's error.
  ForkedRanks(int size, const std::function<void(int rank)>& body);
  /// Kills the children that are still running.
  ~ForkedRanks();
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;

  void kill(int rank) const;
  /// Waits for all children. Kills stragglers at the deadline; their `error` says so.
  std::vector<Ending> wait(Deadline deadline = Deadline::after(std::chrono::seconds(60)));

 private:
  struct Child {
    int process = 0;
    int pipe = -1;
  };
  Ending reap(Child& child, Deadline deadline) const;

  std::vector<Child> children_;
};

/// Forks ranks, which join, and passes each one's engine to `body`. Returns one line for each rank that failed; empty
/// if none did. `killed` is a rank that must end by SIGKILL; if it ends in any other way, that is a failure.
std::string run_forked(int size, const std::function<void(std::shared_ptr<Engine>)>& body, const Options& options = {},
                       int killed = -1);
/// Like run_forked(), but the ranks inherit their memory, so that they can have options that join() does not accept.
std::string run_forked_with(const EndpointOptions& options, int size, std::size_t memory_bytes,
                            const std::function<void(std::shared_ptr<Engine>)>& body, int killed = -1);
/// Returns each rank's mappings of memory that ranks in one process share.
std::vector<HostMemory> share_in_process(int size, std::size_t memory_bytes);
/// Like run_forked_with(), but the ranks are threads of this process that share one mapping, so that a sanitizer sees
/// which thread writes which bytes.
std::string run_threads(int size, const std::function<void(std::shared_ptr<Engine>)>& body, std::size_t memory_bytes,
                        const EndpointOptions& options = {});

/// The kernel's view of a thread of this process.
struct ThreadState {
  bool is_asleep = false;
  long num_sleeps = 0;
};
ThreadState state_of_thread(int thread);
/// Waits until the thread sleeps, and returns how often it has slept.
long wait_until_it_sleeps(int thread);

}  // namespace levada::shm::test
