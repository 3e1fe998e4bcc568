#include "levada/engine/event_count.h"

namespace levada {

// Both sides are sequentially consistent. The notifier increments the count and then looks for waiters; the waiter
// announces itself and then reads the count. At least one of them therefore sees the other.
void EventCount::notify() noexcept {
  count_.fetch_add(1);
  if (has_hook_.load()) {
    std::unique_lock lock(mutex_);
    const auto hook = hook_;
    lock.unlock();
    if (hook) (*hook)();
  }
  if (waiters_.load() == 0) return;
  // A waiter that has seen the old count holds the mutex until it sleeps.
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

bool EventCount::wait(std::uint64_t seen, Deadline deadline) {
  // Without this check, the system would put the thread to sleep for its timer slack.
  if (deadline.expired()) return count_.load() != seen;
  std::unique_lock lock(mutex_);
  waiters_.fetch_add(1);
  const auto moved_on = [&] { return count_.load() != seen; };
  bool moved = true;
  if (deadline.is_never()) changed_.wait(lock, moved_on);
  else moved = changed_.wait_until(lock, deadline.at(), moved_on);
  waiters_.fetch_sub(1);
  return moved;
}

void EventCount::set_hook(std::function<void()> hook) {
  const std::lock_guard lock(mutex_);
  hook_ = hook ? std::make_shared<const std::function<void()>>(std::move(hook)) : nullptr;
  has_hook_ = hook_ != nullptr;
}

}  // namespace levada
