#include "levada/report/history.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace levada::report {
namespace {

/// Returns `span` clipped to [begin, end).
TraceSpan part_of(TraceSpan span, std::int64_t begin, std::int64_t end) {
  begin = std::max(begin, span.begin_ns);
  span.duration_ns = std::max<std::int64_t>(std::min(end, span.end_ns()) - begin, 0);
  span.begin_ns = begin;
  return span;
}

/// Appends the pieces of `wait`. `sender` is innermost() of the reader thread of the rank that it waited for.
void cut_wait(const TraceSpan& wait, int sender_rank, const std::vector<TraceSpan>& sender,
              std::vector<TraceSpan>& pieces) {
  const auto append = [&](std::int64_t begin, std::int64_t end, TraceKind kind, int other) {
    if (begin >= end) return;
    auto piece = part_of(wait, begin, end);
    piece.kind = kind;
    piece.other = other;
    pieces.push_back(piece);
  };
  auto at = wait.begin_ns;
  auto reason = std::partition_point(sender.begin(), sender.end(),
                                     [&](const TraceSpan& span) { return span.end_ns() <= wait.begin_ns; });
  for (; reason != sender.end() && reason->begin_ns < wait.end_ns(); ++reason) {
    const auto part = part_of(*reason, at, wait.end_ns());
    append(at, part.begin_ns, wait.kind, sender_rank);
    append(part.begin_ns, part.end_ns(), reason->kind, reason->kind == TraceKind::room ? reason->other : sender_rank);
    at = std::max(at, part.end_ns());
  }
  append(at, wait.end_ns(), wait.kind, sender_rank);
}

/// Returns, by step, the reader that was the last to finish its messages: the commit of the step waits for it.
std::map<std::int64_t, int> slowest_readers(const std::vector<std::vector<TraceSpan>>& readers) {
  std::map<std::int64_t, std::pair<std::int64_t, int>> last;
  for (std::size_t rank = 0; rank < readers.size(); ++rank) {
    for (const TraceSpan& span : readers[rank]) {
      if (span.kind != TraceKind::pack) continue;
      auto& known = last[span.step];
      known = std::max(known, {span.end_ns(), static_cast<int>(rank)});
    }
  }
  std::map<std::int64_t, int> slowest;
  for (const auto& [step, end] : last) slowest[step] = end.second;
  return slowest;
}

/// Adds the span to the time slots that it overlaps; the first begins at `begin`, and each is `width` long.
void spread(const TraceSpan& span, double begin, double width, TimelineRow& row) {
  const auto kind = static_cast<std::size_t>(span.kind);
  const double from = static_cast<double>(span.begin_ns) - begin, to = static_cast<double>(span.end_ns()) - begin;
  row.total[kind] += to - from;
  const auto last = row.parts.size() - 1;
  for (auto part = std::min(static_cast<std::size_t>(from / width), last); part <= last; ++part) {
    const double left = static_cast<double>(part) * width;
    if (left >= to) break;
    row.parts[part][kind] += std::min(to, left + width) - std::max(from, left);
  }
}

std::pair<std::int64_t, std::int64_t> whole_time(const std::vector<Trace>& traces) {
  auto begin = std::numeric_limits<std::int64_t>::max();
  auto end = std::numeric_limits<std::int64_t>::min();
  for (const Trace& trace : traces) {
    for (const TraceSpan& span : trace.spans) {
      begin = std::min(begin, span.begin_ns);
      end = std::max(end, span.end_ns());
    }
  }
  return begin < end ? std::pair(begin, end) : std::pair<std::int64_t, std::int64_t>(0, 1);
}

}  // namespace

std::string_view describe(TraceKind kind) {
  switch (kind) {
    case TraceKind::step: return "own step";
    case TraceKind::handover: return "delivery";
    case TraceKind::grant: return "commit";
    case TraceKind::read: return "reading storage";
    case TraceKind::pack: return "packing";
    case TraceKind::room: return "back-pressure (queue full)";
    case TraceKind::memory: return "memory is full";
  }
  return "something else";
}

std::vector<TraceSpan> innermost(const Trace& trace, TraceThread thread) {
  std::vector<TraceSpan> spans;
  std::ranges::copy_if(trace.spans, std::back_inserter(spans), [&](const auto& span) { return span.thread == thread; });
  return innermost(std::move(spans));
}

std::vector<TraceSpan> innermost(std::vector<TraceSpan> spans) {
  // An outer span sorts before the spans within it.
  std::sort(spans.begin(), spans.end(), [](const TraceSpan& a, const TraceSpan& b) {
    return std::tuple(a.begin_ns, b.duration_ns) < std::tuple(b.begin_ns, a.duration_ns);
  });
  std::vector<TraceSpan> flat, open;
  std::int64_t at = std::numeric_limits<std::int64_t>::min();
  const auto advance = [&](std::int64_t to) {
    if (!open.empty() && to > std::max(at, open.back().begin_ns)) flat.push_back(part_of(open.back(), at, to));
    at = std::max(at, to);
  };
  const auto close_until = [&](std::int64_t time) {
    while (!open.empty() && open.back().end_ns() <= time) {
      advance(open.back().end_ns());
      open.pop_back();
    }
  };
  for (const TraceSpan& span : spans) {
    close_until(span.begin_ns);
    advance(span.begin_ns);
    open.push_back(open.empty() ? span : part_of(span, span.begin_ns, open.back().end_ns()));
  }
  close_until(std::numeric_limits<std::int64_t>::max());
  return flat;
}

std::vector<Trace> explain_waits(std::vector<Trace> traces) {
  std::int64_t stride = 1;
  for (const Trace& trace : traces) stride = std::max(stride, trace.stride);
  std::vector<std::vector<TraceSpan>> readers;
  for (Trace& trace : traces) {
    trace.thin(stride);
    readers.push_back(innermost(trace, TraceThread::reader));
  }
  const auto slowest = slowest_readers(readers);
  const auto sender_of = [&](const TraceSpan& wait) {
    if (wait.kind == TraceKind::handover) return wait.other;
    const auto found = wait.kind == TraceKind::grant ? slowest.find(wait.step) : slowest.end();
    return found == slowest.end() ? -1 : found->second;
  };
  for (Trace& trace : traces) {
    std::vector<TraceSpan> explained;
    for (const TraceSpan& span : trace.spans) {
      const int sender = sender_of(span);
      const bool known = sender >= 0 && static_cast<std::size_t>(sender) < readers.size();
      if (known) cut_wait(span, sender, readers[static_cast<std::size_t>(sender)], explained);
      else explained.push_back(span);
    }
    trace.spans = std::move(explained);
  }
  return traces;
}

Timeline make_timeline(const std::vector<Trace>& traces, std::size_t parts) {
  Timeline timeline;
  timeline.parts = parts;
  std::tie(timeline.begin_ns, timeline.end_ns) = whole_time(traces);
  const auto begin = static_cast<double>(timeline.begin_ns);
  const double width = (static_cast<double>(timeline.end_ns) - begin) / static_cast<double>(parts);
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    for (const auto thread : {TraceThread::step, TraceThread::reader}) {
      const auto spans = innermost(traces[rank], thread);
      if (spans.empty()) continue;
      TimelineRow row{.rank = static_cast<int>(rank), .thread = thread};
      row.parts.resize(parts);
      for (const TraceSpan& span : spans) spread(span, begin, width, row);
      timeline.rows.push_back(std::move(row));
    }
  }
  return timeline;
}

std::vector<std::vector<std::uint64_t>> memory_in_parts(const std::vector<Trace>& traces, const Timeline& timeline) {
  const auto begin = static_cast<double>(timeline.begin_ns);
  const double length = static_cast<double>(timeline.end_ns) - begin;
  const auto parts = timeline.parts;
  std::vector<std::vector<std::uint64_t>> ranks;
  for (const Trace& trace : traces) {
    auto& used = ranks.emplace_back();
    if (trace.memory.empty()) continue;
    auto samples = trace.memory;
    std::sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; });
    auto next = samples.begin();
    std::uint64_t before = 0;
    for (std::size_t part = 0; part < parts; ++part) {
      const double end = begin + length * static_cast<double>(part + 1) / static_cast<double>(parts);
      std::uint64_t max_bytes = 0;
      const bool any = next != samples.end() && (static_cast<double>(next->time_ns) < end || part + 1 == parts);
      for (; next != samples.end() && (static_cast<double>(next->time_ns) < end || part + 1 == parts); ++next) {
        max_bytes = std::max(max_bytes, next->bytes);
        before = next->bytes;
      }
      used.push_back(any ? max_bytes : before);
    }
  }
  return ranks;
}

}  // namespace levada::report
