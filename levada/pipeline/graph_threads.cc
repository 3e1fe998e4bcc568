#include "levada/pipeline/graph_threads.h"

#include <algorithm>
#include <chrono>

namespace levada::pipeline {
namespace {

constexpr auto poll_interval = std::chrono::milliseconds(50);

thread_local PrefetchThread* current_thread = nullptr;

/// Runs an action now, and another on every exit from the scope.
template <typename Action>
class AtExit {
 public:
  explicit AtExit(Action action) : action_(std::move(action)) {}
  ~AtExit() { action_(); }
  AtExit(const AtExit&) = delete;
  AtExit& operator=(const AtExit&) = delete;

 private:
  Action action_;
};

}  // namespace

PrefetchThread* PrefetchThread::current() {
  return current_thread;
}

void PendingThreads::start(int last_stage) {
  const std::lock_guard lock(mutex_);
  while (!starts_.empty() && starts_.begin()->first <= last_stage) starts_.extract(starts_.begin()).mapped()();
}

bool GraphThreads::wait(WaitPoint& point, const std::function<bool()>& is_ready, bool can_fail) {
  std::unique_lock lock(mutex_);
  point.thread_ = current_thread;
  point.is_ready_ = &is_ready;
  point.can_fail_ = can_fail;
  point.waiting_ = true;
  waiting_.push_back(&point);
  const AtExit leave([&] {
    point.waiting_ = false;
    std::erase(waiting_, &point);
  });
  while (!must_stop()) {
    if (is_ready()) return true;
    if (is_stuck() && can_fail) return false;
    sleep(point, lock);
  }
  throw Stopped{};
}

void GraphThreads::sleep(WaitPoint& point, std::unique_lock<std::mutex>& lock) {
  if (!poll_ || current_thread != nullptr) return point.wakeup_.wait(lock);
  if (point.wakeup_.wait_for(lock, poll_interval) == std::cv_status::no_timeout) return;
  lock.unlock();
  const AtExit relock([&] { lock.lock(); });
  poll_();
}

void GraphThreads::wake(WaitPoint& point) {
  if (!point.waiting_) return;
  // Taking the lock orders this after the waiter's last check; notifying without it lets the waiter run immediately.
  static_cast<void>(std::lock_guard(mutex_));
  point.wakeup_.notify_one();
}

// Also wakes threads that can change the answer: one that is ready or, if none is, those that can fail.
bool GraphThreads::is_stuck() {
  if (waiting_.size() + joining_ < threads_) return false;
  bool stuck = true;
  for (auto* point : waiting_) {
    if (!must_stop(point->thread_) && !(*point->is_ready_)()) continue;
    point->wakeup_.notify_one();
    stuck = false;
  }
  for (auto* point : waiting_) {
    if (stuck && point->can_fail_) point->wakeup_.notify_one();
  }
  return stuck;
}

void GraphThreads::wake_all() {
  for (auto* point : waiting_) point->wakeup_.notify_one();
}

void GraphThreads::add() {
  const std::lock_guard lock(mutex_);
  ++threads_;
}

void GraphThreads::run(PrefetchThread& thread, const std::function<void()>& body) {
  current_thread = &thread;
  try {
    body();
  } catch (const Stopped&) {
  }
  current_thread = nullptr;
  const std::lock_guard lock(mutex_);
  thread.ended_ = true;
  --threads_;
  if (thread.joined_) --joining_;
  wake_all();
}

void GraphThreads::stop(PrefetchThread& thread, const std::function<void()>& join) {
  {
    const std::lock_guard lock(mutex_);
    thread.stopped_ = true;
    if (!thread.ended_) {
      thread.joined_ = true;
      ++joining_;
    }
    wake_all();
  }
  join();
}

}  // namespace levada::pipeline
