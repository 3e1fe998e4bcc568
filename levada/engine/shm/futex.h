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

/// What a sleeper waits for, as bits: it sleeps on when it is woken for others.
using Topics = std::uint32_t;
inline constexpr Topics all_topics = FUTEX_BITSET_MATCH_ANY;

/// Sleeps while `word` holds `seen`, until it is woken; may return early for no reason. False once `limit` has passed.
inline bool futex_wait(Word& word, std::uint32_t seen, Duration limit, Topics topics = all_topics) {
  const auto until = Clock::now() + std::clamp<Duration>(limit, Duration::zero(), std::chrono::hours(1));
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(until.time_since_epoch()).count();
  timespec time{};
  time.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
  time.tv_nsec = static_cast<long>(ns % 1'000'000'000);
  return ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, seen, &time, nullptr, topics) == 0 || errno != ETIMEDOUT;
}

/// How many have been woken.
inline long futex_wake(Word& word, Topics topics = all_topics) {
  return ::syscall(SYS_futex, &word, FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, topics);
}

}  // namespace levada::shm
