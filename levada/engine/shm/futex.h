// Sleeping on a word that processes share.
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

using Word = std::atomic<std::uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free);

/// Sleeps while `word` holds `seen`, until it is woken; may return early for no reason. False once `limit` has passed.
inline bool futex_wait(Word& word, std::uint32_t seen, Duration limit) {
  const auto ns = std::clamp<std::int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(limit).count(), 0,
                                           3600'000'000'000);
  timespec time{};
  time.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
  time.tv_nsec = static_cast<long>(ns % 1'000'000'000);
  return ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0) == 0 || errno != ETIMEDOUT;
}

inline void futex_wake(Word& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace levada::shm
