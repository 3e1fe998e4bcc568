#include "levada/pipeline/lanes.h"

#include <algorithm>
#include <vector>

namespace levada::pipeline {
namespace {

constexpr auto poll_interval = std::chrono::milliseconds(50);

thread_local const Lane* lane_of_this_thread = nullptr;

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

const Lane* Lane::of_this_thread() {
  return lane_of_this_thread;
}
Lane::OnThisThread::OnThisThread(const Lane& lane) {
  lane_of_this_thread = &lane;
}
Lane::OnThisThread::~OnThisThread() {
  lane_of_this_thread = nullptr;
}

/// With the lock.
class Lane::Waiting {
 public:
  Waiting(Lane& lane, const Blocker& blocker, bool may_fail) : lane_(lane) {
    lane.blocker_ = &blocker;
    lane.may_fail_ = may_fail;
    lane.waiting_ = true;
  }
  ~Waiting() {
    lane_.waiting_ = false;
    lane_.blocker_ = nullptr;
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Lane& lane_;
};

bool Lanes::wait(Lane& lane, const Blocker& blocker, bool may_fail) {
  std::unique_lock lock(mutex_);
  const Lane::Waiting waiting(lane, blocker, may_fail);
  while (!lane.stopped_ || lane.needed_ > 0) {
    if (blocker() == nullptr) return true;
    if (in_circle(lane) && may_fail) return false;
    sleep(lane, lock);
  }
  throw Stopped{};
}

void Lanes::sleep(Lane& lane, std::unique_lock<std::mutex>& lock) {
  if (!poll_ || Lane::of_this_thread() != nullptr) return lane.wakeup_.wait(lock);
  if (lane.wakeup_.wait_for(lock, poll_interval) == std::cv_status::no_timeout) return;
  const Unlocked meanwhile(lock);
  poll_();
}

void Lanes::wake(const LanePtr& lane) {
  if (lane == nullptr || !lane->waiting_) return;
  // Behind the lock: it does not look and then miss this. After it: it does not wake only to wait for the lock.
  static_cast<void>(std::lock_guard(mutex_));
  lane->wakeup_.notify_one();
}

void Lanes::stop(Lane& lane) {
  lane.stopped_ = true;
  static_cast<void>(std::lock_guard(mutex_));
  lane.wakeup_.notify_one();
}

// Who could end a circle is told of it, and so is who could go on already.
bool Lanes::in_circle(Lane& lane) {
  std::vector<LanePtr> way;  // behind `lane`
  for (auto* last = &lane;; last = way.back().get()) {
    auto next = last->waiting_ ? (*last->blocker_)() : nullptr;
    if (next == nullptr) {
      if (last->waiting_) last->wakeup_.notify_one();
      return false;
    }
    const bool closed = next.get() == &lane;
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
