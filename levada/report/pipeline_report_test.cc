#include "levada/report/pipeline_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "levada/base/error.h"
#include "levada/report/trace_json.h"

namespace levada::report {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;

/// Returns a report of one dispatching process and two workers.
PipelineReport example() {
  PipelineReport pipeline{.json = "{}",
                          .finding = "parse is the bottleneck.",
                          .processes = {{"consumer (process 10)", {"", "", ""}, {}},
                                        {"dispatcher (process 11)", {"source", "dispatch", ""}, {}},
                                        {"worker 0 (process 12)", {"", "", "parse"}, {}},
                                        {"worker 1 (process 13)", {"", "", "parse"}, {}}}};
  auto& trace = pipeline.processes[2].trace;
  trace.spans = {{.stage = 2, .items = 10, .begin_ns = 5000, .duration_ns = 90'000, .waited_ns = 30'000},
                 {.work = StageWork::input, .stage = 2, .begin_ns = 10'000, .duration_ns = 30'000},
                 {.work = StageWork::input, .other = 1, .begin_ns = 100'000, .duration_ns = 50'000}};
  trace.samples = {{10'000'000, 5}, {30'000'000, 15}};
  return pipeline;
}

TEST(PipelineReport, RoundTrips) {
  EXPECT_EQ(decode_pipeline(encode(example())), example());
}

TEST(PipelineReport, RejectsTruncatedBytes) {
  const Bytes good = encode(example());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(decode_pipeline(ByteView(good).first(size)), CorruptMessage) << size;
  }
}

TEST(PipelineTrace, HasATrackForEveryStageOfEveryProcess) {
  const auto json = Json::parse(trace_json({}, {}, {example()}));
  std::map<int, std::string> processes;
  std::vector<std::string> tracks, spans;
  std::map<int, double> rates;
  for (const Json& event : json.at("traceEvents")) {
    const std::string what = event.at("name"), phase = event.at("ph");
    if (what == "process_name") processes[event.at("pid")] = event.at("args").at("name");
    if (what == "thread_name") {
      tracks.push_back(processes.at(event.at("pid")) + "/" + event.at("args").at("name").get<std::string>());
    }
    if (phase == "X") spans.push_back(what);
    if (phase == "C") rates[event.at("pid")] = event.at("args").at("items");
  }
  EXPECT_THAT(tracks, ElementsAre("dispatcher (process 11)/waits and messages", "dispatcher (process 11)/source",
                                  "dispatcher (process 11)/dispatch", "worker 0 (process 12)/waits and messages",
                                  "worker 0 (process 12)/parse", "worker 1 (process 13)/waits and messages",
                                  "worker 1 (process 13)/parse", "consumer (process 10)/waits and messages"));
  EXPECT_THAT(spans, ElementsAre("parse", "waiting for input", "waiting for items of dispatcher (process 11)"));
  ASSERT_EQ(rates.size(), 1u);
  EXPECT_EQ(rates.begin()->second, 500.0);
}

TEST(PipelineTrace, OmitsSpansThatBelongToNoStage) {
  auto pipeline = example();
  for (const std::int32_t stage : {-1, 3, INT32_MAX}) {
    pipeline.processes[1].trace.spans.push_back({.stage = stage, .begin_ns = 1, .duration_ns = 1});
  }
  pipeline.processes[1].trace.spans.push_back({.work = StageWork::room, .other = INT32_MAX, .duration_ns = 1});
  const auto json = Json::parse(trace_json({}, {}, {pipeline}));
  std::size_t spans = 0;
  for (const Json& event : json.at("traceEvents")) spans += event.at("ph") == "X";
  EXPECT_EQ(spans, 4u);
}

}  // namespace
}  // namespace levada::report
