// Times of several hosts by one clock: each host's steady clock counts from a moment of its own, such as its boot.
#pragma once

#include <cstdint>
#include <span>

#include "levada/base/trace.h"
#include "levada/report/pipeline_report.h"

namespace levada::report {

/// A question to a process of another host and its answer. All times are nanoseconds on steady clocks.
struct RoundTrip {
  std::int64_t asked_ns = 0;     ///< here
  std::int64_t there_ns = 0;     ///< on the other host's clock, when the question had arrived
  std::int64_t answered_ns = 0;  ///< here
  std::int64_t duration_ns() const { return answered_ns - asked_ns; }
};

/// Returns what to add to a time of the other host to get the time of this host's clock at that moment. Wrong by at
/// most half the duration. `there_ns` is at least 0.
std::int64_t clock_shift(const RoundTrip& trip);

/// Adds `ns` to all times. Times that would become negative or too large for their type become the nearest possible.
void shift_times(Trace& trace, std::int64_t ns);
void shift_times(PipelineReport& pipeline, std::int64_t ns);

}  // namespace levada::report
