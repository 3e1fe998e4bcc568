#include "levada/pipeline/lanes.h"

#include <algorithm>
#include <vector>

namespace levada::pipeline {

bool Lanes::wait(Lane& lane, const Blocker& blocker, bool may_fail) {
  std::unique_lock lock(mutex_);
  lane.blocker_ = &blocker;
  lane.may_fail_ = may_fail;
  lane.waiting_ = true;
  bool ready = false, stuck = false;
  while (!lane.stopped_ || lane.needed_ > 0) {
    ready = blocker() == nullptr;
    if (ready) break;
    stuck = in_circle(lane) && may_fail;
    if (stuck) break;
    lane.wakeup_.wait(lock);
  }
  lane.waiting_ = false;
  lane.blocker_ = nullptr;
  if (!ready && !stuck) throw Stopped{};
  return ready;
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
