#include "levada/report/clock_shift.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "levada/report/history.h"

namespace levada::report {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t five_days = std::int64_t{5} * 24 * 3600 * 1'000'000'000;
constexpr auto latest = std::numeric_limits<std::int64_t>::max();

TEST(ClockShift, IsExactIfBothWaysTakeTheSameTime) {
  EXPECT_EQ(clock_shift({.asked_ns = 1000, .there_ns = five_days + 1200, .answered_ns = 1400}), -five_days);
  EXPECT_EQ(clock_shift({.asked_ns = five_days, .there_ns = 30, .answered_ns = five_days + 60}), five_days);
}

TEST(ClockShift, IsWrongByAtMostHalfTheRoundTrip) {
  for (const std::int64_t way_there : {0, 100, 400}) {
    const std::int64_t there = five_days + 1000 + way_there;
    EXPECT_LE(std::abs(clock_shift({.asked_ns = 1000, .there_ns = there, .answered_ns = 1400}) + five_days), 200);
  }
}

TEST(ClockShift, AllowsAReaderOnAnotherHostToExplainAWait) {
  const Trace reader{
      .spans = {{.kind = TraceKind::read, .thread = TraceThread::reader, .begin_ns = 100, .duration_ns = 50}}};
  Trace rank{.spans = {{.kind = TraceKind::handover, .other = 0, .begin_ns = five_days + 100, .duration_ns = 50}},
             .memory = {{.time_ns = five_days + 120, .bytes = 7}}};
  shift_times(rank, -five_days);
  const auto explained = explain_waits({reader, rank});
  ASSERT_EQ(explained[1].spans.size(), 1u);
  EXPECT_EQ(explained[1].spans[0].kind, TraceKind::read);
  EXPECT_EQ(explained[1].memory[0].time_ns, 120);
  const auto timeline = make_timeline(explained, 4);
  EXPECT_EQ(timeline.begin_ns, 100);
  EXPECT_EQ(timeline.end_ns, 150);
}

TEST(ClockShift, ShiftsTheSpansOfEveryPipelineProcess) {
  PipelineReport pipeline{.json = {}, .finding = {}, .processes = {{"consumer", {}, {}}, {"worker 0", {"map"}, {}}}};
  for (ProcessReport& process : pipeline.processes) {
    process.trace.spans = {{.begin_ns = 70, .duration_ns = 5}};
    process.trace.samples = {{.time_ns = 80, .items = 3}};
  }
  shift_times(pipeline, -30);
  for (const ProcessReport& process : pipeline.processes) {
    EXPECT_THAT(process.trace.spans, ElementsAre(StageSpan{.begin_ns = 40, .duration_ns = 5}));
    EXPECT_THAT(process.trace.samples, ElementsAre(StageSample{.time_ns = 50, .items = 3}));
  }
}

TEST(ClockShift, KeepsTimesInTheirRange) {
  Trace trace{.spans = {{.begin_ns = 5, .duration_ns = latest - 5}}, .memory = {{.time_ns = latest}}};
  shift_times(trace, latest);
  EXPECT_EQ(trace.spans[0].end_ns(), latest);
  EXPECT_EQ(trace.memory[0].time_ns, latest);
  shift_times(trace, -latest);
  EXPECT_EQ(trace.spans[0].begin_ns, 0);
  EXPECT_EQ(trace.memory[0].time_ns, 0);
}

}  // namespace
}  // namespace levada::report
