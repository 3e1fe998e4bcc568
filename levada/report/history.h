// The ranks' traces, prepared for display: reasons for waits, and shares of time.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "levada/base/trace.h"

namespace levada::report {

/// Returns a kind's name as the legend shows it: "reading storage".
std::string_view describe(TraceKind kind);

/// Returns the spans of one thread flattened: each moment belongs only to the innermost span. Sorted by time.
std::vector<TraceSpan> innermost(std::vector<TraceSpan> spans);
std::vector<TraceSpan> innermost(const Trace& trace, TraceThread thread);

/// Splits each wait by its cause. Takes the traces of all ranks, by rank, and cuts each wait for a message at the times
/// when its sender (`other`) changed from one activity to another. Each piece gets the kind of the sender's activity
/// (read, pack, room, memory) and, for `room`, the rank that the sender waited for. A wait for a commit is attributed
/// to the reader that was last to finish the step. A wait that the sender's trace does not explain stays unchanged.
/// First thins all traces to the largest stride among them, so that a wait and its cause are both present.
std::vector<Trace> explain_waits(std::vector<Trace> traces);

/// The time of one thread of one rank, divided into equal parts.
struct TimelineRow {
  int rank = 0;
  TraceThread thread = TraceThread::step;
  /// Nanoseconds of each kind in each part. If steps are left out, the spans cover the parts only partially.
  std::vector<std::array<double, trace_kinds>> parts;
  std::array<double, trace_kinds> total{};  ///< over all parts
};

struct Timeline {
  std::int64_t begin_ns = 0, end_ns = 0;
  std::vector<TimelineRow> rows;  ///< by rank, the step thread first; no row for a thread without spans
  std::size_t parts = 1;
  double seconds() const { return static_cast<double>(end_ns - begin_ns) / 1e9; }
};

/// Returns the timeline of traces by rank, from the first moment in them to the last.
Timeline make_timeline(const std::vector<Trace>& traces, std::size_t parts);

/// Returns the maximum memory in use for each rank and part of the timeline. A part without a sample has the value
/// before it. Empty for ranks without samples.
std::vector<std::vector<std::uint64_t>> memory_in_parts(const std::vector<Trace>& traces, const Timeline& timeline);

}  // namespace levada::report
