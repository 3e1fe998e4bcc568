#include "levada/tokens/work_team.h"

#include <algorithm>

#include "levada/base/error.h"

namespace levada {

WorkTeam::WorkTeam(int helpers) {
  for (int i = 0; i < helpers; ++i) {
    try {
      helpers_.start("tokenizing", [this] { help(); });
    } catch (const EngineError&) {
      if (i == 0) throw;
      return;
    }
  }
}

WorkTeam::~WorkTeam() {
  end();
  helpers_.join();
}

void WorkTeam::run(const std::function<void()>& work) {
  Joint joint{work};
  std::unique_lock lock(mutex_);
  open_.push_back(&joint);
  lock.unlock();
  begun_.notify_all();
  work();
  lock.lock();
  std::erase(open_, &joint);
  left_.wait(lock, [&] { return joint.threads == 1; });
}

void WorkTeam::help() {
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [&] { return has_ended_ || !open_.empty(); });
    if (has_ended_) return;
    auto& joint = **std::ranges::min_element(open_, {}, &Joint::threads);
    ++joint.threads;
    lock.unlock();
    joint.work();
    lock.lock();
    std::erase(open_, &joint);
    --joint.threads;
    left_.notify_all();
  }
}

void WorkTeam::end() {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  begun_.notify_all();
}

}  // namespace levada
