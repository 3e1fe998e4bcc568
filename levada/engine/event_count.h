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

/// A thread that changes a condition notifies afterwards; a waiter reads count(), looks at its conditions, and then
/// waits for the count to move on. No change between the two is missed. To notify costs no system call while nobody
/// waits. Any thread.
class EventCount {
 public:
  void notify() noexcept;
  std::uint64_t count() const noexcept { return count_.load(); }
  /// Until count() is no longer `seen`: true; or the deadline: false.
  bool wait(std::uint64_t seen, Deadline deadline);
  /// notify() calls `hook` as well, after the count has moved; it must neither block nor notify. Empty: none. Another
  /// thread may still be inside the old one when this returns.
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
