// Wakes the threads of one rank.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "levada/base/deadline.h"

namespace levada {

/// Lets threads wait for conditions that other threads change. A thread changes a condition and then calls notify(). A
/// waiter reads count(), checks its conditions, and then waits for the count to change, so it misses no change in
/// between. notify() makes no system call if no thread waits. Thread-safe.
class EventCount {
 public:
  void notify() noexcept;
  std::uint64_t count() const noexcept { return count_.load(); }
  /// Waits until count() differs from `seen` and returns true; returns false at the deadline.
  bool wait(std::uint64_t seen, Deadline deadline);
  /// Makes notify() also call `hook`, after incrementing the count. `hook` must neither block nor call notify(). An
  /// empty function removes the hook. Another thread may still be inside the old hook when this returns.
  void set_hook(std::function<void()> hook);

 private:
  std::atomic<std::uint64_t> count_{0};
  std::atomic<int> waiters_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> has_hook_{false};
  std::shared_ptr<const std::function<void()>> hook_;  ///< guarded by mutex_
};

}  // namespace levada
