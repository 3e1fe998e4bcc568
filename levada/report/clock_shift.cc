#include "levada/report/clock_shift.h"

#include <algorithm>
#include <limits>

namespace levada::report {
namespace {

/// `time_ns` and `room_ns` are at least 0. Returns a time in [0, maximum - room_ns].
std::int64_t shifted(std::int64_t time_ns, std::int64_t by_ns, std::int64_t room_ns = 0) {
  constexpr auto max = std::numeric_limits<std::int64_t>::max();
  const std::int64_t sum = by_ns > max - time_ns ? max : time_ns + by_ns;
  return std::clamp<std::int64_t>(sum, 0, max - room_ns);
}

}  // namespace

std::int64_t clock_shift(const RoundTrip& trip) {
  return trip.asked_ns + trip.duration_ns() / 2 - trip.there_ns;
}

void shift_times(Trace& trace, std::int64_t ns) {
  for (TraceSpan& span : trace.spans) span.begin_ns = shifted(span.begin_ns, ns, span.duration_ns);
  for (TraceSample& sample : trace.memory) sample.time_ns = shifted(sample.time_ns, ns);
}

void shift_times(PipelineReport& pipeline, std::int64_t ns) {
  for (ProcessReport& process : pipeline.processes) {
    for (StageSpan& span : process.trace.spans) span.begin_ns = shifted(span.begin_ns, ns, span.duration_ns);
    for (StageSample& sample : process.trace.samples) sample.time_ns = shifted(sample.time_ns, ns);
  }
}

}  // namespace levada::report
