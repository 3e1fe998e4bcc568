// Helpers around the rounds of a benchmark: starting all ranks together, timing, and finding the slowest rank.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"
#include "levada/engine/collect.h"

namespace levada::bench {

/// Timeout of every wait for another rank in a round.
inline constexpr auto round_timeout = std::chrono::seconds(60);

inline double microseconds(Duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

/// Returns the time on the monotonic clock, which all processes of a host share.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// Returns every rank's bytes, by rank. Collective: returns when all ranks have called it. Throws Timeout.
inline std::vector<Bytes> meet(Engine& engine, ByteView mine = {}) {
  return agree(engine, mine, Deadline::after(round_timeout), "benchmark");
}

/// Returns the largest value of any rank for each of `own`; for times, those of the slowest rank. Collective; all ranks
/// pass equally many values. Throws Timeout.
inline std::vector<double> slowest(Engine& engine, std::span<const double> own) {
  std::vector<double> largest(own.begin(), own.end());
  ByteWriter writer;
  for (const double each : own) writer.put(each);
  for (const Bytes& bytes : meet(engine, writer.view())) {
    ByteReader reader(bytes);
    for (double& each : largest) each = std::max(each, reader.get<double>());
  }
  return largest;
}

}  // namespace levada::bench
