// Real processes as ranks. Only for tests.
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

/// How a rank's process ended: by itself without an exception, or with one (its text), or by a signal.
struct Ending {
  bool well = false;
  int signal = 0;
  std::string error;
};

/// Forked children, each with a pipe through which it says why it failed. The calling process must have one thread.
class ForkedRanks {
 public:
  /// Runs `body` in a process a rank; what it throws is that rank's error.
  ForkedRanks(int size, const std::function<void(int rank)>& body);
  /// Kills those that have not ended.
  ~ForkedRanks();
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;

  void kill(int rank) const;
  /// Stragglers are killed at the deadline; their error says so.
  std::vector<Ending> wait(Deadline deadline = Deadline::after(std::chrono::seconds(60)));

 private:
  struct Child {
    int process = 0;
    int pipe = -1;
  };
  Ending reap(Child& child, Deadline deadline) const;

  std::vector<Child> children_;
};

/// Forked ranks that have joined; `body` gets its engine. Returns one sentence for each rank that failed, empty if none
/// did. `killed`: a rank that ends by SIGKILL; any other end of it is a failure.
std::string run_forked(int size, const std::function<void(std::shared_ptr<Engine>)>& body, const Options& options = {},
                       int killed = -1);
/// The same with ranks that inherit their memory, so that they can have options that join() does not take.
std::string run_forked_with(const EndpointOptions& options, int size, std::size_t memory_bytes,
                            const std::function<void(std::shared_ptr<Engine>)>& body, int killed = -1);
/// Memory that ranks in one process have in common.
std::vector<HostMemory> share_in_process(int size, std::size_t memory_bytes);
/// The same with ranks as threads of this process that share one mapping, so that a sanitizer sees which thread writes
/// what.
std::string run_threads(int size, const std::function<void(std::shared_ptr<Engine>)>& body, std::size_t memory_bytes,
                        const EndpointOptions& options = {});

/// A thread of this process, as the kernel sees it.
struct ThreadState {
  bool is_asleep = false;
  long num_sleeps = 0;
};
ThreadState state_of_thread(int thread);
/// Returns how often the thread has slept, once it sleeps.
long wait_until_it_sleeps(int thread);

}  // namespace levada::shm::test
