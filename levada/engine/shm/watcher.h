// Detects a rank's death within a millisecond.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "levada/engine/shm/control.h"
#include "levada/engine/shm/memory.h"

namespace levada::shm {

/// Runs a thread that lives as long as this rank and watches the next living one. The thread's id is in the rank's
/// `alive` word, which is on the thread's list of robust futexes. When the process ends for any reason, the kernel
/// marks the word and wakes its sleepers before it tears down the process's memory. Each watcher sleeps on the word of
/// the next living rank.
class Watcher {
 public:
  /// Returns once this rank counts as alive. The thread also checks the next rank every `interval`, even if it is not
  /// woken. Throws EngineError.
  Watcher(std::shared_ptr<const Mapping> control, int rank, int size, Duration interval);
  /// Ends the thread and withdraws this rank's word, so that the rank's end does not count as a death.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /// Starts watching. Call it once all ranks are alive.
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
  int refusal_ = 0;  ///< errno if the kernel refuses this rank's word; set before the phase ends
  std::atomic<bool> stop_{false};
  std::atomic<int> watched_;
  std::thread thread_;
};

}  // namespace levada::shm
