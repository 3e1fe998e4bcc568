// Measures an exchange of ragged samples between two meshes, from the call on all ranks until the last rank has its
// last sample.
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
  std::uint64_t bytes = 3'500'000;  ///< approximate total size, ragged, in three keys: int64, float32, float32
  int rounds = 100;
  int warm_up = 5;
};

/// Times in microseconds are those of the slowest rank unless stated otherwise; bench/README.md has the formulas.
struct ExchangeBenchResult {
  std::uint64_t payload_bytes = 0;  ///< size of the distinct samples
  std::uint64_t moved_bytes = 0, lower_bound_bytes = 0;
  std::uint64_t wire_bytes = 0;  ///< bytes that all ranks sent, each message once: payload and agreement
  std::uint64_t messages = 0;
  double plan_ms = 0;  ///< median on rank 0; part of median_us
  double median_us = 0, p99_us = 0;
  double repeated_us = 0;            ///< median of the rounds that repeat the previous exchange
  double agree_us = 0, move_us = 0;  ///< medians on rank 0
  double memcpy_us = 0;              ///< time in which one core copies the moved bytes once
};

/// Throws InvalidArgument for invalid meshes, no samples or no rounds.
void check(const ExchangeBenchOptions& options);
/// Returns the number of ranks that the two meshes need.
int ranks_of(const ExchangeBenchOptions& options);

/// The cost of planning, measured in this process, for meshes of any size.
struct PlanBenchResult {
  std::uint64_t payload_bytes = 0, moved_bytes = 0, lower_bound_bytes = 0, multicasts = 0;
  double median_ms = 0, p99_ms = 0;
  std::uint64_t peak_bytes = 0;  ///< peak memory of this process
};
PlanBenchResult measure_plan(const ExchangeBenchOptions& options);

/// Collective; every rank gets the result. Throws EngineError if a rank receives wrong bytes.
ExchangeBenchResult measure(const std::shared_ptr<Engine>& engine, const ExchangeBenchOptions& options);

}  // namespace levada::bench
