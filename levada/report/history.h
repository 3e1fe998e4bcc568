// What the ranks did, made ready to be shown: why they waited, and shares of time.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "levada/base/trace.h"

namespace levada::report {

/// "reading storage": a use of a rank's time, as the legend names it.
std::string_view describe(TraceKind kind);

/// Spans of one thread without those that lie within others: each moment belongs to the innermost. Sorted by time.
std::vector<TraceSpan> innermost(std::vector<TraceSpan> spans);
std::vector<TraceSpan> innermost(const Trace& trace, TraceThread thread);

/// The traces of all ranks, by rank, with each wait for a message cut where its sender (`other`) turned from one thing
/// to another: a piece has the kind of what the sender did (read, pack, room, memory) and, for `room`, the rank that
/// the sender waited for. A wait for the word that a step may be used is for the reader that was last to have it ready.
/// What the sender's trace does not explain stays as it was. All are thinned to the widest
/// stride among them first, so that a wait and its reason are there together.
std::vector<Trace> explain_waits(std::vector<Trace> traces);

/// How one thread of one rank spent its time, in equal parts of the whole time.
struct TimelineRow {
  int rank = 0;
  TraceThread thread = TraceThread::step;
  /// Nanoseconds of each kind in each part. Where steps are left out, parts are only covered in part.
  std::vector<std::array<double, trace_kinds>> parts;
  std::array<double, trace_kinds> total{};  ///< over all parts
};

struct Timeline {
  std::int64_t begin_ns = 0, end_ns = 0;
  std::vector<TimelineRow> rows;  ///< by rank, its thread of steps first; threads without spans have none
  std::size_t parts = 1;
  double seconds() const { return static_cast<double>(end_ns - begin_ns) / 1e9; }
};

/// Of traces by rank, from the first moment in them to the last.
Timeline make_timeline(const std::vector<Trace>& traces, std::size_t parts);

/// The most memory that each rank had in use in each part of the timeline; a part without a sample has what was in use
/// before it. Empty for ranks without samples.
std::vector<std::vector<std::uint64_t>> memory_in_parts(const std::vector<Trace>& traces, const Timeline& timeline);

}  // namespace levada::report
