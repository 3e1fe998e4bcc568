#include "levada/base/trace.h"

#include <gtest/gtest.h>

#include <thread>

#include "levada/base/error.h"

namespace levada {
namespace {

TraceSpan span_at(std::int64_t begin_ns, std::int64_t duration_ns, std::int64_t step = 0,
                  TraceKind kind = TraceKind::step) {
  return {.kind = kind, .step = step, .begin_ns = begin_ns, .duration_ns = duration_ns};
}

Trace small_trace() {
  Trace trace;
  trace.spans = {span_at(10, 5, 0, TraceKind::handover), span_at(20, 30, 1)};
  trace.spans[0].other = 3;
  trace.spans[1].thread = TraceThread::reader;
  trace.memory = {{.step = 1, .time_ns = 40, .bytes = 4096}};
  trace.stride = 2;
  trace.dropped = 7;
  return trace;
}

TEST(Trace, SurvivesARoundTrip) {
  EXPECT_EQ(decode_trace(encode(small_trace())), small_trace());
  EXPECT_EQ(decode_trace(encode(Trace{})), Trace{});
}

TEST(Trace, IsRejectedIfTruncatedAnywhere) {
  const auto bytes = encode(small_trace());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_trace(ByteView(bytes).first(size)), CorruptMessage) << size;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode_trace(longer), CorruptMessage);
}

/// small_trace() with one byte changed.
Bytes with_byte(std::size_t at, unsigned value) {
  auto bytes = encode(small_trace());
  bytes.at(at) = static_cast<std::byte>(value);
  return bytes;
}

TEST(Trace, IsRejectedIfItsFieldsAreInvalid) {
  constexpr std::size_t first_span = 8 + 8 + 4;
  EXPECT_THROW(decode_trace(with_byte(0, 0)), CorruptMessage) << "a stride of zero";
  EXPECT_THROW(decode_trace(with_byte(7, 0x80)), CorruptMessage) << "a stride below zero";
  EXPECT_THROW(decode_trace(with_byte(19, 0xff)), CorruptMessage) << "more spans than the bytes hold";
  EXPECT_THROW(decode_trace(with_byte(first_span, 0)), CorruptMessage) << "an unknown kind";
  EXPECT_THROW(decode_trace(with_byte(first_span, trace_kinds)), CorruptMessage) << "an unknown kind";
  EXPECT_THROW(decode_trace(with_byte(first_span + 1, 2)), CorruptMessage) << "a third thread";
  EXPECT_THROW(decode_trace(with_byte(first_span + 5, 0x80)), CorruptMessage) << "a rank below -1";
  EXPECT_THROW(decode_trace(with_byte(first_span + 13, 0x80)), CorruptMessage) << "a step below zero";
  EXPECT_THROW(decode_trace(with_byte(first_span + 29, 0x80)), CorruptMessage) << "a duration below zero";
  auto endless = small_trace();
  endless.spans[0].begin_ns = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(decode_trace(encode(endless)), CorruptMessage);
}

TEST(TraceLog, KeepsAddedSpans) {
  TraceLog log;
  log.add(span_at(0, 10));
  log.add(TraceSample{.step = 0, .time_ns = 5, .bytes = 17});
  EXPECT_EQ(log.trace().spans, std::vector{span_at(0, 10)});
  EXPECT_EQ(log.trace().memory, (std::vector<TraceSample>{{0, 5, 17}}));
  EXPECT_EQ(log.trace().dropped, 0u);
}

TEST(TraceLog, JoinsBrieflyInterruptedWaitsIntoOneSpan) {
  TraceLog log;
  log.add(span_at(0, 1'000, 4, TraceKind::room));
  log.add(span_at(1'500, 1'000, 4, TraceKind::room));
  EXPECT_EQ(log.trace().spans, std::vector{span_at(0, 2'500, 4, TraceKind::room)});
  log.add(span_at(2'600, 1'000, 4, TraceKind::read));
  log.add(span_at(3'700, 1'000, 5, TraceKind::read));
  log.add(span_at(9'000'000, 1'000, 5, TraceKind::read));
  EXPECT_EQ(log.trace().spans.size(), 4u) << "another kind, another step, a long time between";
}

TEST(TraceLog, DropsEveryOtherStepWhenFull) {
  constexpr std::int64_t steps = 1000;
  TraceLog log(100);
  for (std::int64_t step = 0; step < steps; ++step) {
    log.add(span_at(step * 1'000'000, 10, step, TraceKind::handover));
    log.add(span_at(step * 1'000'000 + 20, 10, step));
    log.add(TraceSample{.step = step, .time_ns = step, .bytes = 1});
  }
  const auto trace = log.trace();
  EXPECT_EQ(trace.stride, 32);
  EXPECT_EQ(trace.spans.size() + trace.memory.size() + trace.dropped, 3u * steps);
  for (std::int64_t i = 0; i * trace.stride < steps; ++i) {
    const auto at = static_cast<std::size_t>(2 * i);
    ASSERT_LT(at + 1, trace.spans.size());
    EXPECT_EQ(trace.spans[at].step, i * trace.stride) << "each step that is there is there whole";
    EXPECT_EQ(trace.spans[at + 1].step, i * trace.stride);
  }
}

TEST(TraceLog, StaysWithinItsMemoryLimit) {
  TraceLog log(10);
  for (std::int64_t i = 0; i < 1000; ++i) log.add(span_at(i * 1'000'000, 1, 0));
  EXPECT_LE(log.trace().spans.size(), 10u);
  EXPECT_EQ(log.trace().spans.size() + log.trace().dropped, 1000u);
}

TEST(TraceLog, AcceptsSpansFromSeveralThreads) {
  constexpr std::int64_t each = 10'000;
  TraceLog log;
  const auto fill = [&log](TraceThread thread) {
    for (std::int64_t step = 0; step < each; ++step) {
      log.add(TraceSpan{.kind = TraceKind::read, .thread = thread, .step = step, .begin_ns = step, .duration_ns = 1});
    }
  };
  std::thread reader(fill, TraceThread::reader);
  fill(TraceThread::step);
  reader.join();
  EXPECT_EQ(log.trace().spans.size(), 2u * each);
}

TEST(TraceScope, RecordsItsLifetime) {
  TraceLog log;
  const auto begin = trace_time(Clock::now());
  { const TraceScope scope(&log, TraceThread::reader, TraceKind::read, 7, 2); }
  const auto spans = log.trace().spans;
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_GE(spans[0].begin_ns, begin);
  EXPECT_LE(spans[0].end_ns(), trace_time(Clock::now()));
  EXPECT_EQ(spans[0].step, 7);
  EXPECT_EQ(spans[0].other, 2);
  const TraceScope nothing(nullptr, TraceThread::step, TraceKind::step, 0);
}

}  // namespace
}  // namespace levada
