// Converts times of several hosts to one clock: each host's steady clock starts at a different moment, such as its
// boot.
#pragma once

#include <cstdint>
#include <span>

#include "levada/base/trace.h"
#include "levada/report/pipeline_report.h"

namespace levada::report {

/// A query to a process on another host and its answer. All times are nanoseconds on steady clocks.
struct RoundTrip {
  std::int64_t asked_ns = 0;     ///< on this host's clock
  std::int64_t there_ns = 0;     ///< on the other host's clock, when the query arrived
  std::int64_t answered_ns = 0;  ///< on this host's clock
  std::int64_t duration_ns() const { return answered_ns - asked_ns; }
};

/// Returns the offset that converts a time of the other host to this host's clock, as of that moment. The error is at
/// most half the duration. `there_ns` must not be negative.
std::int64_t clock_shift(const RoundTrip& trip);

/// Adds `ns` to all times. Clamps times that would become negative or overflow their type.
void shift_times(Trace& trace, std::int64_t ns);
void shift_times(PipelineReport& pipeline, std::int64_t ns);

}  // namespace levada::report
