// An exchange of ragged samples between two meshes, measured from the call on all ranks to the last rank's last sample.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/exchange/exchange.h"

namespace levada::bench {

struct ExchangeBenchOptions {
  std::string from = "dp=4";  ///< meshes; both begin with rank 0
  std::string to = "dp=2,tp=2";
  int samples = 256;
  std::uint64_t bytes = 3'500'000;  ///< of all samples, about: ragged, in three keys (int64, float32, float32)
  int rounds = 100;
  int warm_up = 5;
};

/// Microseconds are of the slowest rank; bench/PERFORMANCE.md has the formulas.
struct ExchangeBenchResult {
  std::uint64_t payload_bytes = 0;  ///< of the distinct samples
  std::uint64_t moved_bytes = 0, lower_bound_bytes = 0;
  std::uint64_t wire_bytes = 0;  ///< that all ranks sent, each message once: payload, and what they agreed on
  std::uint64_t messages = 0;
  double plan_ms = 0;  ///< the median of rank 0, within median_us
  double median_us = 0, p99_us = 0;
  double repeated_us = 0;            ///< the median of rounds that repeat the one before
  double agree_us = 0, move_us = 0;  ///< medians of rank 0
  double memcpy_us = 0;              ///< the moved bytes, copied once by one core
};

/// Throws InvalidArgument for meshes that cannot be, no samples or no rounds.
void check(const ExchangeBenchOptions& options);
/// Ranks that the two meshes take.
int ranks_of(const ExchangeBenchOptions& options);

/// Planning alone, for meshes of any size, in this process.
struct PlanBenchResult {
  std::uint64_t payload_bytes = 0, moved_bytes = 0, lower_bound_bytes = 0, multicasts = 0;
  double median_ms = 0, p99_ms = 0;
  std::uint64_t peak_bytes = 0;  ///< of this process
};
PlanBenchResult measure_plan(const ExchangeBenchOptions& options);

/// Collective; every rank gets the result. Throws EngineError when a rank ends up with other bytes.
ExchangeBenchResult measure(const std::shared_ptr<Engine>& engine, const ExchangeBenchOptions& options);

}  // namespace levada::bench
