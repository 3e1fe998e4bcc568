// How a rank's death becomes known within a millisecond.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "levada/engine/shm/control.h"
#include "levada/engine/shm/memory.h"

namespace levada::shm {

/// A thread that lives as long as this rank and watches the next one. Its id is in the rank's `alive` word and on its
/// list of robust futexes: when the process ends, however it ends, the kernel marks the word and wakes its sleepers,
/// before it begins to take the process's memory apart. The next living rank's word is what this thread sleeps on.
class Watcher {
 public:
  /// Returns once this rank counts as alive. Checks the next rank every `interval`, though nothing has woken it. Throws
  /// EngineError.
  Watcher(std::shared_ptr<const Mapping> control, int rank, int size, Duration interval);
  /// Ends the thread and takes this rank's word back: its end is no death any more.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /// To be called once all ranks are alive.
  void watch();

 private:
  enum class Phase { starting, alive, watching, stopping, ended };

  void run() noexcept;
  void watch_others();
  int next_living() const;
  void enter(Phase phase);

  std::shared_ptr<const Mapping> mapping_;
  Control control_;
  int rank_;
  const Duration interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::starting;
  int refusal_ = 0;  ///< errno where the kernel does not keep this rank's word; set before the phase ends
  std::atomic<bool> stop_{false};
  std::atomic<int> watched_;
  std::thread thread_;
};

}  // namespace levada::shm
