#include "levada/base/trace.h"

#include <fmt/format.h>

#include <limits>

namespace levada {
namespace {

constexpr std::uint32_t span_bytes = 1 + 1 + 4 + 3 * 8, sample_bytes = 3 * 8;
/// The maximum gap between two spans that are joined. Spans of a wait have gaps because unrelated events also wake the
/// thread.
constexpr std::int64_t moment_ns = 20'000;
constexpr std::int64_t max_stride = std::int64_t{1} << 40;

TraceSpan get_span(ByteReader& reader) {
  TraceSpan span;
  span.kind = reader.get_enum(TraceKind::step, TraceKind::memory, "kind of span");
  span.thread = reader.get_enum(TraceThread::step, TraceThread::reader, "thread");
  span.other = reader.get_at_least<std::int32_t>(-1, "rank");
  span.step = reader.get_at_least<std::int64_t>(0, "step");
  span.begin_ns = reader.get_at_least<std::int64_t>(0, "time");
  span.duration_ns = reader.get_at_least<std::int64_t>(0, "duration");
  if (span.duration_ns > std::numeric_limits<std::int64_t>::max() - span.begin_ns)
    reader.fail("the end of a span is out of range");
  return span;
}

TraceSample get_sample(ByteReader& reader) {
  TraceSample sample;
  sample.step = reader.get_at_least<std::int64_t>(0, "step");
  sample.time_ns = reader.get_at_least<std::int64_t>(0, "time");
  sample.bytes = static_cast<std::uint64_t>(reader.get_at_least<std::int64_t>(0, "memory"));
  return sample;
}

}  // namespace

void Trace::thin(std::int64_t to_stride) {
  if (to_stride <= stride) return;
  stride = to_stride;
  const auto left_out = [to_stride](const auto& each) { return each.step % to_stride != 0; };
  dropped += std::erase_if(spans, left_out);
  dropped += std::erase_if(memory, left_out);
}

Bytes encode(const Trace& trace) {
  ByteWriter writer;
  writer.put(trace.stride);
  writer.put(trace.dropped);
  writer.put(static_cast<std::uint32_t>(trace.spans.size()));
  for (const TraceSpan& span : trace.spans) {
    writer.put(span.kind);
    writer.put(span.thread);
    writer.put(span.other);
    writer.put(span.step);
    writer.put(span.begin_ns);
    writer.put(span.duration_ns);
  }
  writer.put(static_cast<std::uint32_t>(trace.memory.size()));
  for (const TraceSample& sample : trace.memory) {
    writer.put(sample.step);
    writer.put(sample.time_ns);
    writer.put(sample.bytes);
  }
  return std::move(writer).take();
}

Trace decode_trace(ByteView bytes) {
  ByteReader reader(bytes);
  Trace trace;
  trace.stride = reader.get_at_least<std::int64_t>(1, "stride");
  if (trace.stride > max_stride) reader.fail(fmt::format("stride {}", trace.stride));
  trace.dropped = reader.get<std::uint64_t>();
  trace.spans.resize(reader.get_count(span_bytes));
  for (TraceSpan& span : trace.spans) span = get_span(reader);
  trace.memory.resize(reader.get_count(sample_bytes));
  for (TraceSample& sample : trace.memory) sample = get_sample(reader);
  reader.expect_end();
  return trace;
}

void TraceLog::add(const TraceSpan& span) {
  const std::lock_guard lock(mutex_);
  if (prolongs(span) || !has_place(span.step)) return;
  trace_.spans.push_back(span);
  last_[static_cast<std::size_t>(span.thread)] = trace_.spans.size();
}

void TraceLog::add(const TraceSample& sample) {
  const std::lock_guard lock(mutex_);
  if (has_place(sample.step)) trace_.memory.push_back(sample);
}

Trace TraceLog::trace() const {
  const std::lock_guard lock(mutex_);
  return trace_;
}

bool TraceLog::prolongs(const TraceSpan& span) {
  const auto last = last_[static_cast<std::size_t>(span.thread)];
  if (last == 0) return false;
  TraceSpan& before = trace_.spans[last - 1];
  const auto gap = span.begin_ns - before.end_ns();
  const bool same = before.kind == span.kind && before.step == span.step && before.other == span.other;
  if (!same || gap < 0 || gap > moment_ns) return false;
  before.duration_ns = span.end_ns() - before.begin_ns;
  return true;
}

bool TraceLog::has_place(std::int64_t step) {
  const auto events = [this] { return trace_.spans.size() + trace_.memory.size(); };
  if (events() >= max_events_) {
    last_ = {};
    while (events() >= max_events_ && trace_.stride < max_stride) trace_.thin(2 * trace_.stride);
  }
  if (step % trace_.stride == 0 && events() < max_events_) return true;
  ++trace_.dropped;
  return false;
}

}  // namespace levada
