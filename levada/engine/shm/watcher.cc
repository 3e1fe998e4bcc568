#include "levada/engine/shm/watcher.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "levada/base/error.h"
#include "levada/base/signals_blocked.h"
#include "levada/base/threads.h"

namespace levada::shm {
namespace {

/// Puts one word on the calling thread's list of robust futexes. Restores the C library's list afterwards.
class RobustWord {
 public:
  /// Check is_set() before relying on it.
  explicit RobustWord(FutexWord& word) {
    if (::syscall(SYS_get_robust_list, 0, &library_head_, &library_size_) != 0) return;
    entry_.next = &head_.list;
    head_.list.next = &entry_;
    head_.futex_offset = reinterpret_cast<char*>(&word) - reinterpret_cast<char*>(&entry_);
    head_.list_op_pending = nullptr;
    is_set_ = ::syscall(SYS_set_robust_list, &head_, sizeof(head_)) == 0;
  }
  ~RobustWord() {
    if (is_set_) ::syscall(SYS_set_robust_list, library_head_, library_size_);
  }
  RobustWord(const RobustWord&) = delete;
  RobustWord& operator=(const RobustWord&) = delete;

  /// Returns whether the kernel has accepted the list, so that this thread's death will be detected. If not, errno
  /// holds the reason.
  bool is_set() const { return is_set_; }

 private:
  robust_list entry_{};
  robust_list_head head_{};
  robust_list_head* library_head_ = nullptr;
  std::size_t library_size_ = 0;
  bool is_set_ = false;
};

}  // namespace

Watcher::Watcher(std::shared_ptr<const Mapping> control, int rank, int size, Duration interval)
    : mapping_(std::move(control)), control_(mapping_->data(), size), rank_(rank), interval_(interval), watched_(rank) {
  {
    const SignalsBlocked blocked;
    thread_ = start_thread("the shm engine", [this] { run(); });
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return phase_ != Phase::starting; });
  if (refusal_ == 0) return;
  lock.unlock();
  thread_.join();
  throw EngineError(
      fmt::format("this system does not report the death of a rank ({}), which the shm engine needs; allow robust "
                  "futexes (in the container's seccomp profile), or use another engine",
                  system_error("set_robust_list", refusal_)));
}

Watcher::~Watcher() {
  stop_ = true;
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::alive) phase_ = Phase::stopping;
  changed_.notify_all();
  // The thread may be about to sleep, so one wake-up is not enough.
  while (phase_ != Phase::ended) {
    futex_wake(control_.page(watched_).alive);
    changed_.wait_for(lock, std::chrono::milliseconds(1));
  }
  lock.unlock();
  thread_.join();
}

void Watcher::watch() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::watching;
  changed_.notify_all();
}

void Watcher::enter(Phase phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
  changed_.notify_all();
}

int Watcher::next_living() const {
  for (int i = 1; i < control_.size(); ++i) {
    const int rank = (rank_ + i) % control_.size();
    const RankPage& there = control_.page(rank);
    if (there.dead.load() == 0 && there.gone.load() == 0) return rank;
  }
  return rank_;
}

void Watcher::watch_others() {
  while (!stop_) {
    const int rank = next_living();
    watched_ = rank;
    FutexWord& alive = control_.page(rank).alive;
    std::uint32_t word = alive.load(std::memory_order_seq_cst);
    if (rank != rank_ && (word == 0 || (word & FUTEX_OWNER_DIED) != 0)) {
      control_.note_end(rank);
      continue;
    }
    // The kernel wakes sleepers only if the word is marked as having waiters.
    if ((word & FUTEX_WAITERS) == 0 && !alive.compare_exchange_strong(word, word | FUTEX_WAITERS)) continue;
    if (!stop_) futex_wait(alive, word | FUTEX_WAITERS, interval_);
  }
}

void Watcher::run() noexcept {
  FutexWord& alive = control_.page(rank_).alive;
  {
    const RobustWord robust(alive);
    if (!robust.is_set()) {
      refusal_ = errno;
      return enter(Phase::ended);
    }
    alive.store(static_cast<std::uint32_t>(::syscall(SYS_gettid)), std::memory_order_seq_cst);
    enter(Phase::alive);
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return phase_ != Phase::alive; });
    }
    watch_others();
    // The kernel wakes one sleeper of a dead rank. If that was this thread, another watcher has to check.
    futex_wake(control_.page(watched_).alive);
    alive.store(0, std::memory_order_seq_cst);
  }
  futex_wake(alive);
  enter(Phase::ended);
}

}  // namespace levada::shm
