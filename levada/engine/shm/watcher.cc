#include "levada/engine/shm/watcher.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <system_error>

#include "levada/base/error.h"
#include "levada/engine/shm/signals_blocked.h"

namespace levada::shm {
namespace {

constexpr Duration recheck_interval = std::chrono::milliseconds(500);

/// Puts one word on the calling thread's list of robust futexes; the C library's own list comes back afterwards.
class RobustWord {
 public:
  explicit RobustWord(Word& word) {
    ::syscall(SYS_get_robust_list, 0, &library_head_, &library_size_);
    entry_.next = &head_.list;
    head_.list.next = &entry_;
    head_.futex_offset = reinterpret_cast<char*>(&word) - reinterpret_cast<char*>(&entry_);
    head_.list_op_pending = nullptr;
    ::syscall(SYS_set_robust_list, &head_, sizeof(head_));
  }
  ~RobustWord() { ::syscall(SYS_set_robust_list, library_head_, library_size_); }
  RobustWord(const RobustWord&) = delete;
  RobustWord& operator=(const RobustWord&) = delete;

 private:
  robust_list entry_{};
  robust_list_head head_{};
  robust_list_head* library_head_ = nullptr;
  std::size_t library_size_ = 0;
};

}  // namespace

Watcher::Watcher(std::shared_ptr<const Mapping> control, int rank, int size)
    : mapping_(std::move(control)), control_(mapping_->data(), size), rank_(rank), watched_(rank) {
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw EngineError(fmt::format("cannot start the shm engine's thread ({}); raise ulimit -u", error.what()));
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return phase_ != Phase::starting; });
}

Watcher::~Watcher() {
  stop_ = true;
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::alive) phase_ = Phase::stopping;
  changed_.notify_all();
  // The thread may be on its way into its sleep, so that one wake is not enough.
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
    Word& alive = control_.page(rank).alive;
    std::uint32_t word = alive.load(std::memory_order_seq_cst);
    if (rank != rank_ && (word == 0 || (word & FUTEX_OWNER_DIED) != 0)) {
      control_.note_end(rank);
      continue;
    }
    // The kernel wakes sleepers only of a word that says there are some.
    if ((word & FUTEX_WAITERS) == 0 && !alive.compare_exchange_strong(word, word | FUTEX_WAITERS)) continue;
    if (!stop_) futex_wait(alive, word | FUTEX_WAITERS, recheck_interval);
  }
}

void Watcher::run() noexcept {
  Word& alive = control_.page(rank_).alive;
  {
    const RobustWord robust(alive);
    alive.store(static_cast<std::uint32_t>(::syscall(SYS_gettid)), std::memory_order_seq_cst);
    enter(Phase::alive);
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return phase_ != Phase::alive; });
    }
    watch_others();
    alive.store(0, std::memory_order_seq_cst);
  }
  futex_wake(alive);
  enter(Phase::ended);
}

}  // namespace levada::shm
