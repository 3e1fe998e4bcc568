// Measures scatter and broadcast, from the moment the reader has a batch until the last rank can access it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/transfer/inbox.h"

namespace levada::bench {

/// The memory of a batch when the clock starts.
enum class BatchSource : std::uint8_t {
  arena,  ///< engine memory
  host,   ///< ordinary memory
};

/// Parses "arena" or "host". Throws InvalidArgument for another word.
BatchSource parse_source(std::string_view word);

/// An operation. The mesh axis of the ranks decides what each of them receives.
struct FanOut {
  std::string_view name;
  std::string_view axis;
};
inline constexpr FanOut scatter{"scatter", "dp"};      ///< a different batch for each rank
inline constexpr FanOut broadcast{"broadcast", "tp"};  ///< one batch for all

struct FanOutOptions {
  std::uint64_t bytes = 13107200;  ///< bytes that each rank receives in a round
  int fields = 4;                  ///< tensors that share the bytes
  BatchSource source = BatchSource::arena;
  Access access = Access::read_only;
  int write_percent = 0;  ///< share of its pages that each rank overwrites, evenly spread; 0 with read_only
  int rounds = 300;
  int warm_up = 20;  ///< rounds before the measured ones
};

/// Times in microseconds are medians over rounds unless named otherwise; bench/README.md has the formulas.
struct FanOutResult {
  double median_us = 0;  ///< until the last rank has read access to every field
  double p99_us = 0;
  double write_us = 0;  ///< until the last rank has overwritten its share of the pages
  double read_us = 0;   ///< until the last rank has read every byte
  double cycle_us = 0;  ///< until all leases have ended
  double delivered_gb_s = 0;
  double memcpy_gb_s = 0;  ///< rate of copying the distinct bytes once, in the same rounds, between the same kinds of
                           ///< memory
  double copies_per_byte = 0;
};

/// Throws InvalidArgument if the fields cannot share the bytes in whole words, for no rounds, or for writes to
/// read-only views.
void check(const FanOutOptions& options);

/// Collective; every rank gets the result. Throws EngineError if a rank reads wrong bytes.
FanOutResult measure(const std::shared_ptr<Engine>& engine, const FanOut& operation, const FanOutOptions& options);

}  // namespace levada::bench
