// What the ranks of a benchmark do around a round: begin it together, time it, and find who took longest.
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

/// For whatever a rank awaits of another in a round.
inline constexpr auto round_timeout = std::chrono::seconds(60);

inline double microseconds(Duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

/// On the clock that all processes of a host share.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// Everybody's bytes, by rank. Collective; no rank goes on before all have come. Throws Timeout.
inline std::vector<Bytes> meet(Engine& engine, ByteView mine = {}) {
  return agree(engine, mine, Deadline::after(round_timeout), "benchmark");
}

/// Of each of `own` the largest that any rank gives: of its times, that of the slowest. Collective; all ranks give as
/// many. Throws Timeout.
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
