// Measures many reduce-scatters, from the first input until the last rank has its last result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/fan_out.h"
#include "levada/engine/engine.h"

namespace levada::bench {

struct ReduceOptions {
  std::vector<std::int64_t> shards = std::vector<std::int64_t>(256, 4096);  ///< bytes of one rank's piece of an input
  double capacity_mb = 25;                                                  ///< capacity of a bucket, in MiB
  BatchSource source = BatchSource::host;
  int rounds = 100;
  int warm_up = 5;
};

/// Parses "256x4KiB", "64x256KiB", several of these with commas, or the name of a file with a number of bytes on each
/// line. Throws InvalidArgument that names the invalid part.
std::vector<std::int64_t> parse_sizes(const std::string& text);

/// Times in microseconds are those of the slowest rank, and GB/s are of one rank's bytes; bench/README.md has the
/// formulas.
struct ReduceResult {
  std::uint64_t bytes = 0;  ///< size of one rank's inputs
  double median_us = 0;
  double p99_us = 0;
  double one_large_us = 0;  ///< time for the same bytes as one input, measured in turn with the others
  double memcpy_gb_s = 0;   ///< rate of copying one rank's inputs once
  double sum_gb_s = 0;      ///< rate of bytes read and written by the same additions without messages
  double flushes = 0;       ///< flushes per round
  double input_gb_s() const { return static_cast<double>(bytes) / median_us / 1e3; }
};

/// Throws InvalidArgument for no inputs, sizes that are not whole float32 values, or no rounds.
void check(const ReduceOptions& options);

/// Collective; every rank gets the result. Throws EngineError if a sum is wrong.
ReduceResult measure(const std::shared_ptr<Engine>& engine, const ReduceOptions& options);

}  // namespace levada::bench
