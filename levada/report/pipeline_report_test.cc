#include "levada/report/pipeline_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "levada/base/error.h"
#include "levada/report/feed_html.h"
#include "levada/report/pipeline_html.h"
#include "levada/report/pipeline_testing.h"
#include "levada/report/trace_json.h"

namespace levada::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using testing::example;
using testing::example_json;

TEST(PipelineReport, IsWhatAPipelineTellsOfItself) {
  const auto pipeline = example();
  ASSERT_EQ(pipeline.stages.size(), 3u);
  EXPECT_EQ(pipeline.stages[2].role, PipelineRole::worker);
  EXPECT_THAT(pipeline.stages[2].inputs, ElementsAre(1));
  EXPECT_EQ(pipeline.dealt, 1u);
  EXPECT_EQ(pipeline.holds_back, 2u);
  EXPECT_EQ(pipeline.processes[2].name, "worker 0 (process 12)");
  EXPECT_EQ(pipeline.processes[2].stages[2].items, 500);
  EXPECT_EQ(pipeline.processes[2].trace.spans.size(), 3u);
}

TEST(PipelineReport, IsRefusedWhereItIsNone) {
  const auto refused = [](const char* key, const Json& value) {
    auto json = example_json();
    json[key] = value;
    EXPECT_THROW(pipeline_from_json(json.dump(), {}), InvalidArgument) << key;
  };
  EXPECT_THROW(pipeline_from_json("{", {}), InvalidArgument);
  EXPECT_THROW(pipeline_from_json("{}", {}), InvalidArgument);
  refused("stages", Json::array());
  refused("workers", -1);
  refused("dealt", "no such stage");
  refused("load", -1);
  const std::vector<StageTrace> one(1);
  EXPECT_THROW(pipeline_from_json(example_json().dump(), encode(one)), InvalidArgument);
}

TEST(PipelineBottleneck, NamesTheStageThatHoldsTheRestBackAndWhatMayHelp) {
  auto pipeline = example();
  EXPECT_EQ(
      find_bottleneck(pipeline),
      "parse holds the rest back: it takes 90% of each worker's time. Make it quicker, or let more workers share it.");
  pipeline.holds_back = 0;
  EXPECT_THAT(find_bottleneck(pipeline),
              HasSubstr("source holds the rest back: it takes 90% of the dispatching process's "
                        "time. There is one such process: shard()"));
  pipeline.holds_back.reset();
  pipeline.load = 0.2;
  EXPECT_THAT(find_bottleneck(pipeline), HasSubstr("No stage holds the rest back: the busiest process works 20% of"));
}

TEST(PipelineSection, HasARowAStageAndProcess) {
  const auto html = pipeline_section(example());
  for (const char* process : {"worker 0 (process 12)", "worker 1 (process 13)"}) {
    EXPECT_THAT(html, HasSubstr("<tr data-process=\"" + std::string(process) + "\" data-stage=\"parse\">"));
  }
  EXPECT_THAT(html, HasSubstr("data-process=\"dispatcher (process 11)\" data-stage=\"source\""));
  EXPECT_THAT(html, Not(HasSubstr("data-process=\"dispatcher (process 11)\" data-stage=\"parse\"")));
  EXPECT_THAT(html,
              HasSubstr("<td class=\"n\">500</td><td class=\"n\">50.0</td><td class=\"n\">90%</td><td class=\"n\">"
                        "5.0%</td><td class=\"n\">5.0%</td>"));
  EXPECT_THAT(html, HasSubstr("<td>parse<span class=\"tag slowest\">"));
}

TEST(PipelineSection, DrawsTheGraphWithItsProcesses) {
  const auto svg = pipeline_picture(example());
  EXPECT_THAT(svg, HasSubstr(">dispatching process</text>"));
  EXPECT_THAT(svg, HasSubstr(">2 workers</text>"));
  EXPECT_THAT(svg, HasSubstr("<g class=\"node slowest\" data-stage=\"parse\"><title>parse: map</title>"));
  EXPECT_THAT(svg, HasSubstr(">100.0/s, works 90%</text>"));
  std::size_t ways = 0;
  for (auto at = svg.find("class=\"way"); at != std::string::npos; at = svg.find("class=\"way", at + 1)) ++ways;
  EXPECT_EQ(ways, 3u);
}

TEST(PipelineSection, ShowsNamesAsText) {
  auto json = example_json();
  for (auto& stage : json["stages"]) stage["what"] = "<script>&\"";
  auto pipeline = pipeline_from_json(json.dump(), {});
  pipeline.processes[1].name = "<b>";
  EXPECT_THAT(pipeline_page(pipeline), Not(HasSubstr("<script>")));
  EXPECT_THAT(pipeline_page(pipeline), Not(HasSubstr("<b>")));
}

TEST(PipelineOfAFeed, IsInItsPageAndItsBottleneck) {
  auto pipeline = example();
  pipeline.rank = 0;
  FeedReport report;
  report.ranks.emplace_back();
  report.ranks[0].seconds = 1;
  report.ranks[0].wait_seconds = 0.5;
  Trace trace;
  trace.spans = {{TraceKind::read, TraceThread::step, 0, 0, 0, 500},
                 {TraceKind::step, TraceThread::step, 0, 0, 500, 500}};
  EXPECT_EQ(
      find_bottleneck(report, {trace}, {pipeline}),
      "Ranks waited 50% of the time, 100% of that while rank 0 was waiting for its pipeline, in which parse holds the "
      "rest back: it takes 90% of each worker's time. Make it quicker, or let more workers share it.");
  const auto page =
      feed_page(report, {.paths = {}, .traces = {trace}, .edges = {}, .pipelines = {pipeline}, .error = {}});
  EXPECT_THAT(page, HasSubstr("id=\"pipeline-0\""));
  EXPECT_THAT(page, HasSubstr("Pipeline that rank 0 reads from"));
}

TEST(PipelineTrace, HasAProcessForEachAndATrackForEachOfItsStages) {
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

TEST(PipelineTrace, LeavesOutWhatIsOfNoStage) {
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
