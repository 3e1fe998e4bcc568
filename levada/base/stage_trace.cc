#include "levada/base/stage_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "levada/base/trace.h"

namespace levada {
namespace {

constexpr std::size_t stage_span_bytes = 1 + 3 * 4 + 3 * 8, stage_sample_bytes = 2 * 8;
constexpr std::int64_t max_sample_stride = std::int64_t{1} << 40;
constexpr std::int64_t between_samples_ns = 10'000'000;

std::int64_t window_of(std::int64_t time_ns) {
  return time_ns / StageTrace::window_ns;
}

void put_span(ByteWriter& writer, const StageSpan& span) {
  writer.put(span.work);
  writer.put(span.stage);
  writer.put(span.other);
  writer.put(span.items);
  writer.put(span.begin_ns);
  writer.put(span.duration_ns);
  writer.put(span.waited_ns);
}

StageSpan get_stage_span(ByteReader& reader) {
  StageSpan span;
  span.work = reader.get_enum(StageWork::item, StageWork::idle, "work");
  span.stage = reader.get_at_least<std::int32_t>(-1, "stage");
  span.other = reader.get_at_least<std::int32_t>(-1, "process");
  span.items = reader.get<std::uint32_t>();
  span.begin_ns = reader.get_at_least<std::int64_t>(0, "time");
  span.duration_ns = reader.get_at_least<std::int64_t>(0, "duration");
  span.waited_ns = reader.get_at_least<std::int64_t>(0, "wait");
  if (span.duration_ns > std::numeric_limits<std::int64_t>::max() - span.begin_ns)
    reader.fail("the end of a span is out of range");
  return span;
}

StageTrace get_trace(ByteReader& reader) {
  StageTrace trace;
  trace.stride = reader.get_at_least<std::int64_t>(1, "stride");
  if (trace.stride > max_sample_stride) reader.fail(fmt::format("stride {}", trace.stride));
  trace.dropped = reader.get<std::uint64_t>();
  trace.spans.resize(reader.get_count(stage_span_bytes));
  for (StageSpan& span : trace.spans) span = get_stage_span(reader);
  trace.samples.resize(reader.get_count(stage_sample_bytes));
  for (StageSample& sample : trace.samples) {
    sample.time_ns = reader.get_at_least<std::int64_t>(0, "time");
    sample.items = reader.get_at_least<std::int64_t>(0, "count");
  }
  return trace;
}

/// Returns whether `next` continues `last`: both are of the same kind and in the same window, and the gap between them
/// is at most 2 us or 1/32 of their total duration.
bool continues(const StageSpan& last, const StageSpan& next) {
  const auto gap = next.begin_ns - last.end_ns();
  const bool same = last.duration_ns > 0 && last.work == next.work && last.other == next.other;
  return same && gap >= 0 && gap <= std::max<std::int64_t>(2000, (last.duration_ns + next.duration_ns) / 32) &&
         window_of(last.begin_ns) == window_of(next.begin_ns);
}

}  // namespace

void StageTrace::thin(std::int64_t to_stride) {
  if (to_stride <= stride) return;
  stride = to_stride;
  dropped += std::erase_if(spans, [&](const StageSpan& span) { return window_of(span.begin_ns) % stride != 0; });
  dropped += std::erase_if(samples, [&](const StageSample& sample) { return window_of(sample.time_ns) % stride != 0; });
}

Bytes encode(std::span<const StageTrace> traces) {
  ByteWriter writer;
  writer.put(static_cast<std::uint32_t>(traces.size()));
  for (const StageTrace& trace : traces) {
    writer.put(trace.stride);
    writer.put(trace.dropped);
    writer.put(static_cast<std::uint32_t>(trace.spans.size()));
    for (const StageSpan& span : trace.spans) put_span(writer, span);
    writer.put(static_cast<std::uint32_t>(trace.samples.size()));
    for (const StageSample& sample : trace.samples) {
      writer.put(sample.time_ns);
      writer.put(sample.items);
    }
  }
  return std::move(writer).take();
}

std::vector<StageTrace> decode_stage_traces(ByteView bytes) {
  constexpr std::size_t empty_trace_bytes = 2 * 8 + 2 * 4;
  ByteReader reader(bytes);
  std::vector<StageTrace> traces(reader.get_count(empty_trace_bytes));
  for (StageTrace& trace : traces) trace = get_trace(reader);
  reader.expect_end();
  return traces;
}

StageLog::StageLog(std::size_t stages, std::size_t max_events) : max_events_(max_events), last_(stages + 1) {}

void StageLog::add(const StageSpan& span) {
  const std::lock_guard lock(mutex_);
  const bool is_wait_of_stage = span.stage >= 0 && span.work != StageWork::item;
  if (is_wait_of_stage) return keep(span);  // waits of a stage are not joined across its items
  StageSpan& last = last_.at(static_cast<std::size_t>(span.stage + 1));
  if (continues(last, span)) {
    last.duration_ns = span.end_ns() - last.begin_ns;
    last.waited_ns += span.waited_ns;
    last.items += span.items;
    return;
  }
  keep(last);
  last = span;
}

void StageLog::add(const StageSample& sample) {
  const std::lock_guard lock(mutex_);
  if (sample.time_ns - sampled_ns_ < between_samples_ns) return;
  sampled_ns_ = sample.time_ns;
  if (has_place(sample.time_ns)) trace_.samples.push_back(sample);
}

StageTrace StageLog::trace() const {
  const std::lock_guard lock(mutex_);
  StageTrace trace = trace_;
  for (const StageSpan& last : last_) {
    const bool shows = last.duration_ns >= min_ns && window_of(last.begin_ns) % trace.stride == 0;
    if (shows) trace.spans.push_back(last);
  }
  return trace;
}

void StageLog::keep(const StageSpan& span) {
  if (span.duration_ns >= min_ns && has_place(span.begin_ns)) trace_.spans.push_back(span);
}

bool StageLog::has_place(std::int64_t time_ns) {
  const auto events = [this] { return trace_.spans.size() + trace_.samples.size(); };
  if (window_ != window_of(time_ns)) {
    window_ = window_of(time_ns);
    in_window_ = 0;
  }
  if (in_window_ >= max_events_ / 2) {  // otherwise a window that fills the log would leave no space for others
    ++trace_.dropped;
    return false;
  }
  while (events() >= max_events_ && trace_.stride < max_sample_stride) trace_.thin(2 * trace_.stride);
  if (window_of(time_ns) % trace_.stride == 0 && events() < max_events_) {
    ++in_window_;
    return true;
  }
  ++trace_.dropped;
  return false;
}

StageScope::StageScope(StageLog* log, StageWork work, int other) : log_(log) {
  if (log_ != nullptr) span_ = {.work = work, .other = other, .begin_ns = trace_time(Clock::now())};
}

StageScope::~StageScope() {
  if (log_ == nullptr) return;
  span_.duration_ns = trace_time(Clock::now()) - span_.begin_ns;
  log_->add(span_);
}

}  // namespace levada
