// Scatter and broadcast, measured from the reader's batch in hand to the last rank's access to it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/transfer/inbox.h"

namespace levada::bench {

/// Where a batch is when the clock starts.
enum class BatchSource : std::uint8_t {
  arena,  ///< produced in engine memory
  host,   ///< in ordinary memory
};

/// "arena" or "host". Throws InvalidArgument for another word.
BatchSource parse_source(std::string_view word);

/// One operation: which axis the ranks lie along decides what each gets.
struct FanOut {
  std::string_view name;
  std::string_view axis;
};
inline constexpr FanOut scatter{"scatter", "dp"};      ///< a batch of its own for each rank
inline constexpr FanOut broadcast{"broadcast", "tp"};  ///< one batch for all

struct FanOutOptions {
  std::uint64_t bytes = 13107200;  ///< that each rank receives in a round
  int fields = 4;                  ///< tensors they are divided into
  BatchSource source = BatchSource::arena;
  Access access = Access::read_only;
  int write_percent = 0;  ///< share of its pages that each rank overwrites, evenly spread; 0 with read_only
  int rounds = 300;
  int warm_up = 20;  ///< rounds before those that count
};

/// Microseconds are medians over rounds unless named otherwise; bench/PERFORMANCE.md has the formulas.
struct FanOutResult {
  double median_us = 0;  ///< until the last rank has read access to every field
  double p99_us = 0;
  double write_us = 0;  ///< until the last rank has overwritten its share of the pages
  double read_us = 0;   ///< until the last rank has read every byte
  double cycle_us = 0;  ///< until all leases have ended
  double delivered_gb_s = 0;
  double memcpy_gb_s = 0;  ///< of the distinct bytes, copied once within the same rounds between the same memory
  double copies_per_byte = 0;
};

/// Throws InvalidArgument for bytes that the fields cannot share in whole words, no rounds, or writes to views that are
/// read-only.
void check(const FanOutOptions& options);

/// Collective; every rank gets the result. Throws EngineError when a rank reads other bytes than were sent.
FanOutResult measure(const std::shared_ptr<Engine>& engine, const FanOut& operation, const FanOutOptions& options);

}  // namespace levada::bench
