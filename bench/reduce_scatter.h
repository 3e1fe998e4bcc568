// Many reduce-scatters, measured from the first input at hand to the last rank's last result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/fan_out.h"
#include "levada/engine/engine.h"

namespace levada::bench {

struct ReduceOptions {
  std::vector<std::int64_t> shards = std::vector<std::int64_t>(256, 4096);  ///< bytes of each input's piece for a rank
  double capacity_mb = 25;                                                  ///< of a bucket, in MiB
  BatchSource source = BatchSource::host;
  int rounds = 100;
  int warm_up = 5;
};

/// "256x4KiB", "64x256KiB", several with commas, or the name of a file with a number of bytes on each line. Throws
/// InvalidArgument, naming what is none.
std::vector<std::int64_t> parse_sizes(const std::string& text);

/// Microseconds are of the slowest rank; GB/s of one rank's bytes; bench/PERFORMANCE.md has the formulas.
struct ReduceResult {
  std::uint64_t bytes = 0;  ///< of one rank's inputs
  double median_us = 0;
  double p99_us = 0;
  double one_large_us = 0;  ///< the same bytes as one input, in turn with the others
  double memcpy_gb_s = 0;   ///< one rank's inputs, copied once
  double sum_gb_s = 0;      ///< bytes read and written while the same pieces are added up by the same code alone
  double flushes = 0;       ///< a round
  double input_gb_s() const { return static_cast<double>(bytes) / median_us / 1e3; }
};

/// Throws InvalidArgument: no inputs, sizes that are no whole float32, no rounds.
void check(const ReduceOptions& options);

/// Collective; every rank gets the result. Throws EngineError where a sum is wrong.
ReduceResult measure(const std::shared_ptr<Engine>& engine, const ReduceOptions& options);

}  // namespace levada::bench
