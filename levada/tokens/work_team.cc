#include "levada/tokens/work_team.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

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

void for_each_of(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& act, WorkTeam& team,
                 std::size_t helpers) {
  std::atomic<std::size_t> next = 0, at_work = threads;
  std::mutex failing;
  std::pair<std::size_t, std::exception_ptr> failure{count, nullptr};
  const auto leave = [&](std::size_t leaving) {
    if ((at_work -= leaving) == 0) team.end();
  };
  const auto run = [&](std::size_t number) noexcept {
    for (auto i = next++; i < count; i = next++) {
      try {
        act(i);
      } catch (...) {
        next = count;
        const std::lock_guard lock(failing);
        if (i < failure.first) failure = {i, std::current_exception()};
      }
    }
    leave(1);
    if (number < helpers) team.help();
  };
  ThreadGroup others;
  std::size_t started = 1;
  try {
    for (; started < threads; ++started) others.start("tokenizing", [&run, started] { run(started); });
  } catch (const EngineError&) {
    if (started == 1) throw;
    leave(threads - started);
  }
  run(0);
  others.join();
  if (failure.second) std::rethrow_exception(failure.second);
}

}  // namespace levada
