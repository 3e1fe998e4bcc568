#include "levada/base/stage_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/error.h"

namespace levada {
namespace {

constexpr std::int64_t us = 1000, ms = 1'000'000;

StageSpan item(std::int64_t begin_ns, std::int64_t duration_ns, std::int32_t stage = 0) {
  return {.stage = stage, .items = 1, .begin_ns = begin_ns, .duration_ns = duration_ns, .waited_ns = duration_ns / 2};
}

TEST(StageLog, JoinsConsecutiveSmallItems) {
  StageLog log(2);
  for (std::int64_t i = 0; i < 100; ++i) {
    log.add(item(i * 5 * us, 5 * us - 100, 0));
    log.add(item(i * 50 * us, 5 * us, 1));
  }
  const auto spans = log.trace().spans;
  ASSERT_EQ(spans.size(), 1u) << "items of stage 1 are far apart and too small to be recorded";
  EXPECT_EQ(spans[0].items, 100u);
  EXPECT_EQ(spans[0].end_ns(), 500 * us - 100);
  EXPECT_EQ(spans[0].waited_ns, 100 * ((5 * us - 100) / 2));
}

TEST(StageLog, JoinsProcessSpansButNotWaitsOfAStage) {
  StageLog log(1);
  log.add({.work = StageWork::input, .stage = 0, .begin_ns = 10 * us, .duration_ns = 30 * us});
  log.add(item(0, 50 * us));
  log.add({.work = StageWork::input, .other = 1, .begin_ns = 60 * us, .duration_ns = 30 * us});
  log.add({.work = StageWork::input, .other = 2, .begin_ns = 90 * us, .duration_ns = 30 * us});
  log.add({.work = StageWork::input, .other = 2, .begin_ns = 121 * us, .duration_ns = 30 * us});
  std::vector<std::pair<std::int32_t, std::int64_t>> seen;
  for (const auto& span : log.trace().spans) seen.emplace_back(span.stage, span.duration_ns);
  EXPECT_THAT(seen, testing::UnorderedElementsAre(std::pair(0, 30 * us), std::pair(0, 50 * us), std::pair(-1, 30 * us),
                                                  std::pair(-1, 61 * us)));
}

TEST(StageLog, KeepsWholeWindowsWhenFull) {
  StageLog log(1, 100);
  for (std::int64_t i = 0; i < 10'000; ++i) log.add(item(i * 2 * ms, ms));
  const auto trace = log.trace();
  EXPECT_GE(trace.stride, 128);
  EXPECT_LE(trace.spans.size(), 101u);
  EXPECT_GT(trace.dropped, 9000u);
  std::int64_t last = 0;
  for (const auto& span : trace.spans) {
    EXPECT_EQ(span.begin_ns / StageTrace::window_ns % trace.stride, 0);
    last = span.begin_ns;
  }
  EXPECT_GT(last, 0) << "not only the beginning";
}

TEST(StageLog, KeepsOtherWindowsDespiteACrowdedOne) {
  StageLog log(1, 100);
  for (std::int64_t i = 0; i < 1000; ++i) log.add(item(3 * StageTrace::window_ns + i * 50 * us, 40 * us));
  for (std::int64_t i = 4; i < 8; ++i) log.add(item(i * StageTrace::window_ns, ms));
  const auto trace = log.trace();
  EXPECT_GE(trace.spans.size(), 50u);
  EXPECT_EQ(trace.spans.back().begin_ns, 7 * StageTrace::window_ns);
}

TEST(StageLog, LimitsTheSamplingRate) {
  StageLog log(1);
  for (std::int64_t i = 1; i <= 1000; ++i) log.add(StageSample{i * ms, i});
  EXPECT_EQ(log.trace().samples.size(), 100u);
}

TEST(StageTraces, SurviveARoundTrip) {
  StageTrace trace{.spans = {item(5, 7), {.work = StageWork::room, .other = 3, .begin_ns = 1, .duration_ns = 2}},
                   .samples = {{4, 5}},
                   .stride = 8,
                   .dropped = 9};
  const std::vector<StageTrace> traces = {trace, {}};
  EXPECT_EQ(decode_stage_traces(encode(traces)), traces);
}

TEST(StageTraces, AreRejectedIfTheirFieldsAreInvalid) {
  const std::vector<StageTrace> traces = {{.spans = {item(5, 7)}, .samples = {{4, 5}}}};
  const Bytes good = encode(traces);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(decode_stage_traces(ByteView(good).first(size)), CorruptMessage) << size;
  }
  const auto with = [](auto change) {
    std::vector<StageTrace> bad = {{.spans = {item(5, 7)}}};
    change(bad[0]);
    return encode(bad);
  };
  EXPECT_THROW(decode_stage_traces(with([](auto& t) { t.stride = 0; })), CorruptMessage);
  EXPECT_THROW(decode_stage_traces(with([](auto& t) { t.spans[0].stage = -2; })), CorruptMessage);
  EXPECT_THROW(decode_stage_traces(with([](auto& t) { t.spans[0].work = StageWork{8}; })), CorruptMessage);
  EXPECT_THROW(decode_stage_traces(with([](auto& t) { t.spans[0].begin_ns = INT64_MAX - 3; })), CorruptMessage);
}

}  // namespace
}  // namespace levada
