#include "levada/report/trace_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

namespace levada::report {
namespace {

using Json = nlohmann::json;

FeedReport two_ranks() {
  FeedReport report;
  report.mesh = "dp=1,tp=2";
  report.readers = "one";
  report.engine = "shm";
  for (int rank = 0; rank < 2; ++rank) {
    report.ranks.emplace_back();
    report.ranks.back().rank = rank;
    report.ranks.back().coordinates = {{"dp", 0}, {"tp", rank}};
    report.ranks.back().is_reader = rank == 0;
  }
  return report;
}

std::vector<Trace> two_traces() {
  Trace reader, receiver;
  reader.spans = {{TraceKind::read, TraceThread::reader, -1, 5, 1'000'000, 2'000},
                  {TraceKind::pack, TraceThread::reader, -1, 5, 1'002'000, 1'500},
                  {TraceKind::step, TraceThread::step, 0, 5, 1'005'000, 8'000}};
  reader.memory = {{5, 1'001'000, 8192}};
  receiver.spans = {{TraceKind::read, TraceThread::step, 0, 5, 1'000'500, 4'001},
                    {TraceKind::step, TraceThread::step, 0, 5, 1'004'600, 9'000}};
  return {reader, receiver};
}

/// Whatever a viewer relies on: keys and types by phase, spans of a thread that follow each other or nest.
void expect_valid(const Json& json) {
  EXPECT_EQ(json.at("displayTimeUnit"), "ms");
  std::map<int, std::vector<std::pair<double, double>>> spans;
  std::map<std::int64_t, std::vector<double>> arrows;
  for (const Json& event : json.at("traceEvents")) {
    const std::string phase = event.at("ph");
    ASSERT_TRUE(event.at("name").is_string() && event.at("pid").is_number_integer() &&
                event.at("tid").is_number_integer())
        << event;
    EXPECT_GT(event.at("pid"), 0);
    if (phase == "M") continue;
    ASSERT_TRUE(event.at("ts").is_number()) << event;
    EXPECT_GE(event.at("ts"), 0.0);
    if (phase == "X") {
      EXPECT_TRUE(event.at("args").is_object() && event.at("cat").is_string());
      spans[event.at("tid")].emplace_back(event.at("ts"), event.at("dur"));
    } else if (phase == "C") {
      for (const Json& value : event.at("args")) EXPECT_TRUE(value.is_number());
    } else {
      ASSERT_TRUE(phase == "s" || phase == "f") << phase;
      arrows[event.at("id")].push_back(event.at("ts"));
    }
  }
  for (auto& [thread, each] : spans) {
    std::sort(each.begin(), each.end());
    for (std::size_t i = 1; i < each.size(); ++i) {
      const double end = each[i - 1].first + each[i - 1].second;
      EXPECT_TRUE(each[i].first >= end - 1e-6 || each[i].first + each[i].second <= end + 1e-6) << "thread " << thread;
    }
  }
  for (const auto& [id, ends] : arrows) {
    ASSERT_EQ(ends.size(), 2u) << id;
    EXPECT_LE(ends[0], ends[1]);
  }
}

std::vector<Json> events_of(const Json& json, const std::string& phase) {
  std::vector<Json> events;
  for (const Json& event : json.at("traceEvents")) {
    if (event.at("ph") == phase) events.push_back(event);
  }
  return events;
}

TEST(TraceJson, HasTheFormatThatViewersRead) {
  expect_valid(Json::parse(trace_json(two_ranks(), two_traces())));
  expect_valid(Json::parse(trace_json(two_ranks(), {Trace{}, Trace{}})));
  expect_valid(Json::parse(trace_json(two_ranks(), {})));
}

TEST(TraceJson, NamesAProcessForEachRankAndItsThreads) {
  const auto json = Json::parse(trace_json(two_ranks(), two_traces()));
  std::map<std::string, std::vector<std::string>> names;
  for (const Json& event : events_of(json, "M")) {
    if (event["args"].contains("name")) names[event["name"]].push_back(event["args"]["name"]);
  }
  EXPECT_THAT(names["process_name"], testing::ElementsAre("rank 0 dp0 tp0", "rank 1 dp0 tp1"));
  EXPECT_THAT(names["thread_name"], testing::ElementsAre("step", "reader", "step"));
}

TEST(TraceJson, TimesAreMicrosecondsSinceTheFirstEvent) {
  const auto spans = events_of(Json::parse(trace_json(two_ranks(), two_traces())), "X");
  ASSERT_EQ(spans.size(), 5u);
  EXPECT_EQ(spans[0]["name"], "reading storage");
  EXPECT_EQ(spans[0]["ts"], 0.0);
  EXPECT_EQ(spans[0]["dur"], 2.0);
  EXPECT_EQ(spans[0]["args"], (Json{{"step", 5}}));
  EXPECT_EQ(spans[3]["name"], "waiting: reading storage");
  EXPECT_EQ(spans[3]["ts"], 0.5);
  EXPECT_EQ(spans[3]["dur"], 4.001);
  EXPECT_EQ(spans[3]["args"], (Json{{"step", 5}, {"rank", 0}}));
}

TEST(TraceJson, DrawsAnArrowFromAPackedBatchToEachOfItsSteps) {
  const auto json = Json::parse(trace_json(two_ranks(), two_traces()));
  const auto from = events_of(json, "s"), to = events_of(json, "f");
  ASSERT_EQ(from.size(), 2u);
  ASSERT_EQ(to.size(), 2u);
  EXPECT_EQ(from[1]["tid"], 11);
  EXPECT_EQ(from[1]["ts"], 2.0);
  EXPECT_EQ(to[1]["tid"], 20);
  EXPECT_EQ(to[1]["ts"], 4.6);
  EXPECT_EQ(to[1]["bp"], "e");
}

TEST(TraceJson, CountsMemoryInUse) {
  const auto counters = events_of(Json::parse(trace_json(two_ranks(), two_traces())), "C");
  ASSERT_EQ(counters.size(), 1u);
  EXPECT_EQ(counters[0]["args"], (Json{{"bytes", 8192}}));
  EXPECT_EQ(counters[0]["ts"], 1.0);
}

TEST(TraceJson, EscapesHostileNames) {
  auto report = two_ranks();
  report.mesh = "\xff\"\n</script>";
  report.ranks[1].coordinates = {{"\"},{\\ \xc3", 1}};
  expect_valid(Json::parse(trace_json(report, two_traces())));
}

}  // namespace
}  // namespace levada::report
