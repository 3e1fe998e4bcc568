// Sleeps on a word that processes share.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>

#include "levada/base/deadline.h"

namespace levada::shm {

using FutexWord = std::atomic<std::uint32_t>;
static_assert(sizeof(FutexWord) == 4 && FutexWord::is_always_lock_free);

/// The events that a sleeper waits for, as bits. A wake-up for other bits does not wake it.
using WakeMask = std::uint32_t;
inline constexpr WakeMask wake_all = FUTEX_BITSET_MATCH_ANY;

/// Sleeps until woken, unless `word` differs from `seen`. May wake spuriously. Returns false once `limit` has passed.
inline bool futex_wait(FutexWord& word, std::uint32_t seen, Duration limit, WakeMask mask = wake_all) {
  const auto until = Clock::now() + std::clamp<Duration>(limit, Duration::zero(), std::chrono::hours(1));
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(until.time_since_epoch()).count();
  timespec time{};
  time.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
  time.tv_nsec = static_cast<long>(ns % 1'000'000'000);
  return ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, seen, &time, nullptr, mask) == 0 || errno != ETIMEDOUT;
}

/// Wakes the threads that sleep for any bit of `mask`. Returns their number.
inline long futex_wake(FutexWord& word, WakeMask mask = wake_all) {
  return ::syscall(SYS_futex, &word, FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, mask);
}

}  // namespace levada::shm
