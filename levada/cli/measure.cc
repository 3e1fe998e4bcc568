#include "levada/cli/measure.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/threads.h"

namespace levada::cli {
namespace {

double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

constexpr std::uint32_t over = UINT32_MAX;

/// Answers every odd turn with the even one after it.
void answer(std::atomic<std::uint32_t>& turn) {
  for (std::uint32_t seen = 0; seen != over;) {
    turn.wait(seen);
    seen = turn.load();
    if (seen % 2 == 1 && seen != over) turn.compare_exchange_strong(seen, seen + 1);
    turn.notify_one();
    if (seen != over) seen += seen % 2;
  }
}

}  // namespace

double measure_copy() {
  constexpr std::size_t bytes = 64u << 20;
  std::vector<char> from(bytes, 'a');
  std::vector<char> to(bytes, 'b');
  double best = 0;
  for (int round = 0; round < 4; ++round) {
    const auto begin = Clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    asm volatile("" : : "r"(to.data()) : "memory");
    best = std::max(best, static_cast<double>(bytes) / seconds_of(Clock::now() - begin));
  }
  return best / 1e9;
}

double measure_wake() {
  std::atomic<std::uint32_t> turn{0};
  std::thread other = start_thread("measuring", [&turn] { answer(turn); });
  std::vector<double> trips;
  const auto deadline = Deadline::after(std::chrono::milliseconds(200));
  for (std::uint32_t round = 0; round < 2000 && !deadline.expired(); ++round) {
    const auto begin = Clock::now();
    turn.store(2 * round + 1);
    turn.notify_one();
    turn.wait(2 * round + 1);
    trips.push_back(seconds_of(Clock::now() - begin));
  }
  turn.store(over);
  turn.notify_one();
  other.join();
  const auto middle = trips.begin() + static_cast<std::ptrdiff_t>(trips.size() / 2);
  std::nth_element(trips.begin(), middle, trips.end());
  return *middle / 2 * 1e6;
}

}  // namespace levada::cli
