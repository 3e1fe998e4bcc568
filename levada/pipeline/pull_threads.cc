#include "levada/pipeline/pull_threads.h"

#include <algorithm>
#include <vector>

namespace levada::pipeline {
namespace {

constexpr auto poll_interval = std::chrono::milliseconds(50);

thread_local const PullThread* current_pull_thread = nullptr;

/// Also where what is done meanwhile throws.
class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
};

}  // namespace

const PullThread* PullThread::of_this_thread() {
  return current_pull_thread;
}
PullThread::OnThisThread::OnThisThread(const PullThread& thread) {
  current_pull_thread = &thread;
}
PullThread::OnThisThread::~OnThisThread() {
  current_pull_thread = nullptr;
}

/// With the lock.
class PullThread::Waiting {
 public:
  Waiting(PullThread& thread, const Blocker& blocker, bool may_fail) : thread_(thread) {
    thread.blocker_ = &blocker;
    thread.may_fail_ = may_fail;
    thread.waiting_ = true;
  }
  ~Waiting() {
    thread_.waiting_ = false;
    thread_.blocker_ = nullptr;
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  PullThread& thread_;
};

bool PullThreads::wait(PullThread& thread, const Blocker& blocker, bool may_fail) {
  std::unique_lock lock(mutex_);
  const PullThread::Waiting waiting(thread, blocker, may_fail);
  while (!must_stop(thread)) {
    if (blocker() == nullptr) return true;
    if (in_circle(thread) && may_fail) return false;
    sleep(thread, lock);
  }
  throw Stopped{};
}

void PullThreads::sleep(PullThread& thread, std::unique_lock<std::mutex>& lock) {
  if (!poll_ || PullThread::of_this_thread() != nullptr) return thread.wakeup_.wait(lock);
  if (thread.wakeup_.wait_for(lock, poll_interval) == std::cv_status::no_timeout) return;
  const Unlocked meanwhile(lock);
  poll_();
}

void PullThreads::wake(const PullThreadPtr& thread) {
  if (thread == nullptr || !thread->waiting_) return;
  // Behind the lock: it does not look and then miss this. After it: it does not wake only to wait for the lock.
  static_cast<void>(std::lock_guard(mutex_));
  thread->wakeup_.notify_one();
}

void PullThreads::stop(PullThread& thread) {
  thread.stopped_ = true;
  static_cast<void>(std::lock_guard(mutex_));
  thread.wakeup_.notify_one();
}

// Who could end a circle is told of it, and so is who could go on already.
bool PullThreads::in_circle(PullThread& thread) {
  std::vector<PullThreadPtr> way;  // behind `thread`
  for (auto* last = &thread;; last = way.back().get()) {
    auto next = last->waiting_ ? (*last->blocker_)() : nullptr;
    if (next == nullptr) {
      if (last->waiting_) last->wakeup_.notify_one();
      return false;
    }
    const bool closed = next.get() == &thread;
    auto each = std::find(way.begin(), way.end(), next);
    if (!closed && each == way.end()) {
      way.push_back(std::move(next));
      continue;
    }
    for (each = closed ? way.begin() : each; each != way.end(); ++each) {
      if ((*each)->may_fail_) (*each)->wakeup_.notify_one();
    }
    return closed;
  }
}

}  // namespace levada::pipeline
