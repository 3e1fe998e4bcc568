#include "levada/report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "levada/report/history.h"

namespace levada::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr std::int64_t ms = 1'000'000;

struct Feed {
  FeedReport report;
  FeedHistory history;
};

/// Returns a feed of `ranks` ranks that take ten steps of 10 ms each and wait 5 ms for each while rank 0 does `reason`.
Feed feed_of(int ranks, TraceKind reason = TraceKind::read) {
  Feed feed;
  feed.report.mesh = "tp=" + std::to_string(ranks);
  feed.report.readers = "one";
  feed.report.engine_choice = "shm: all 4 ranks are on one host";
  feed.report.steps = 10;
  feed.report.end_cause = "steps";
  feed.history.paths = {"corpus.jsonl"};
  feed.history.traces.resize(static_cast<std::size_t>(ranks));
  auto& reader = feed.history.traces[0];
  for (int rank = 0; rank < ranks; ++rank) {
    auto& spans = feed.history.traces[static_cast<std::size_t>(rank)].spans;
    for (std::int64_t step = 0; step < 10; ++step) {
      spans.push_back({TraceKind::handover, TraceThread::step, 0, step, step * 15 * ms, 5 * ms});
      spans.push_back({TraceKind::step, TraceThread::step, 0, step, (step * 15 + 5) * ms, 10 * ms});
    }
    RankReport mine;
    mine.rank = rank;
    mine.coordinates = {{"tp", rank}};
    mine.batches = 10;
    mine.bytes = 1 << 20;
    mine.wait_seconds = 0.05;
    mine.seconds = 0.15;
    mine.is_reader = rank == 0;
    feed.report.ranks.push_back(mine);
    feed.history.edges.push_back({0, rank, mine.bytes});
  }
  for (std::int64_t step = 0; step < 10; ++step) {
    reader.spans.push_back(
        {reason, TraceThread::reader, reason == TraceKind::room ? 1 : -1, step, step * 15 * ms, 5 * ms});
    reader.memory.push_back({step, step * 15 * ms, 3u << 20});
  }
  feed.history.traces = explain_waits(std::move(feed.history.traces));
  return feed;
}

Json data_of(const Feed& feed) {
  return Json::parse(feed_json(feed.report, feed.history)).at("feed");
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

TEST(FeedPage, HasALineAndARowForEveryRank) {
  const auto data = data_of(feed_of(4));
  EXPECT_EQ(data["timelines"]["step"]["rows"].size(), 4u);
  EXPECT_EQ(data["timelines"]["reader"]["rows"].size(), 1u);
  EXPECT_EQ(data["ranks"].size(), 4u);
  EXPECT_EQ(data["edges"]["rows"], Json::parse(R"([{"name": "0", "bytes": [1048576, 1048576, 1048576, 1048576]}])"));
  EXPECT_EQ(data["memory"]["curves"].size(), 1u) << "one rank uses memory";
  EXPECT_EQ(data["ranks"][0]["memory"], 3 << 20);
  EXPECT_EQ(data["ranks"][2]["place"], "tp2");
  EXPECT_EQ(data["ranks"][2]["shares"][0], 3333) << "a third of its time, storage was read";
}

TEST(FeedPage, SharesAddUp) {
  const auto data = data_of(feed_of(3));
  for (const auto& row : data["timelines"]["step"]["rows"]) {
    ASSERT_EQ(row["shares"].size(), data["timelines"]["parts"]);
    for (const auto& part : row["shares"]) {
      int sum = 0;
      for (const int share : part) sum += share;
      EXPECT_TRUE(sum == 0 || std::abs(sum - 1000) <= 3) << part;
    }
  }
}

TEST(FeedPage, StaysSmallWithManyRanks) {
  auto feed = feed_of(500);
  feed.history.traces.assign(500, feed.history.traces[0]);  // all of them read
  const auto data = data_of(feed);
  for (const char* thread : {"step", "reader"}) {
    const auto& rows = data["timelines"][thread];
    EXPECT_EQ(rows["ranks"], 500);
    ASSERT_EQ(rows["rows"].size(), 49u);
    EXPECT_EQ(rows["rows"][0]["rank"], nullptr) << "all ranks together";
  }
  EXPECT_EQ(data["memory"]["ranks"], 500);
  EXPECT_EQ(data["memory"]["curves"].size(), 40u);
  EXPECT_EQ(data["edges"]["columns"].size(), 63u);
  EXPECT_EQ(data["edges"]["columns"][62], "496-499");
  EXPECT_EQ(data["ranks"].size(), 500u);
  EXPECT_LT(feed_page(feed.report, feed.history).size(), 1u << 20);
}

TEST(FeedPage, ShowsTheRanksThatWaitedLongest) {
  auto feed = feed_of(100);
  for (auto& span : feed.history.traces[99].spans) span.kind = TraceKind::step;
  const auto rows = data_of(feed)["timelines"]["step"]["rows"];
  EXPECT_EQ(rows[48]["rank"], 47);
  for (auto& span : feed.history.traces[99].spans) span.kind = TraceKind::room;
  EXPECT_EQ(data_of(feed)["timelines"]["step"]["rows"][48]["rank"], 99);
}

TEST(FeedPage, ShowsAFullQueueAsPaleBackPressure) {
  auto feed = feed_of(2);
  for (auto& trace : feed.history.traces) {
    for (auto& span : trace.spans) span.kind = TraceKind::room;
  }
  const auto page = feed_page(feed.report, feed.history);
  EXPECT_THAT(page, HasSubstr("\"back-pressure (queue full)\""));
  EXPECT_THAT(page, HasSubstr("#readers .k-room { fill: var(--idle)"));
}

TEST(FeedPage, LoadsNoExternalResources) {
  auto page = feed_page(feed_of(2).report, {});
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  page.replace(page.find("http://www.w3.org/2000/svg"), 26, "the name of SVG");
  for (const char* outside : {"http:", "https:", " src=", "@import", "url(\"", "<link", "import "}) {
    EXPECT_THAT(page, Not(HasSubstr(outside))) << outside;
  }
}

TEST(FeedPage, EscapesDataThatWouldEndTheScript) {
  const std::string hostile = "</script><img src=x onerror=\"alert('x')\">&\xff@DATA@";
  auto feed = feed_of(2);
  feed.report.mesh = feed.report.readers = feed.report.engine_choice = hostile;
  feed.report.ranks[1].coordinates = {{hostile, 1}};
  feed.history.paths = {hostile};
  feed.history.error = hostile;
  feed.history.pipelines = {
      {.rank = 0, .json = Json{{"name", "</script>"}}.dump(), .finding = hostile, .processes = {}}};
  const auto page = feed_page(feed.report, feed.history);
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_EQ(count(page, "</script>"), 2u);
  const auto begin = page.find("id=\"data\">") + 10;
  const auto data = Json::parse(page.substr(begin, page.find("</script>") - begin));
  EXPECT_THAT(data["feed"]["error"].get<std::string>(), HasSubstr("</script><img src=x"));
  EXPECT_EQ(data["pipelines"], Json::parse(R"([{"rank": 0, "report": {"name": "</script>"}}])"));
}

TEST(FeedPage, ShowsTheFirstPipelinesOfMany) {
  auto feed = feed_of(2);
  for (int rank = 0; rank < 20; ++rank)
    feed.history.pipelines.push_back({.rank = rank, .json = "{}", .finding = {}, .processes = {}});
  auto page = Json::parse(feed_json(feed.report, feed.history));
  EXPECT_EQ(page["pipelines"].size(), 16u);
  EXPECT_EQ(page["more_pipelines"], 4);
  feed.history.pipelines[1].json = "\"" + std::string(3u << 20, 'x') + "\"";
  page = Json::parse(feed_json(feed.report, feed.history));
  EXPECT_EQ(page["more_pipelines"], 19);
}

TEST(FeedPage, ReportsDroppedSpansAndSilentRanks) {
  auto feed = feed_of(3);
  feed.history.traces[2] = {};
  feed.history.traces[0].dropped = 12;
  feed.history.traces[0].stride = 8;
  EXPECT_EQ(data_of(feed)["recording"], Json::parse(R"({"dropped": 12, "silent": 1, "stride": 8})"));
}

TEST(FeedPage, IsWrittenWithoutARecording) {
  FeedReport report;
  report.ranks.emplace_back();
  const auto data = Json::parse(feed_json(report, {})).at("feed");
  EXPECT_EQ(data["finding"], "");
  EXPECT_EQ(data["ranks"].size(), 1u);
  EXPECT_TRUE(data["timelines"]["step"]["rows"].empty() && data["edges"]["rows"].empty());
}

TEST(FeedPage, ShowsTheBalanceOfSteps) {
  auto feed = feed_of(2);
  EXPECT_FALSE(data_of(feed).contains("balance"));
  feed.report.balance.emplace(BalanceReport{.by = {.cost = SampleCost::parse("flops"), .max_tokens = 100}, .ranks = 2});
  feed.report.balance->series.add({.steps = 1, .busiest = 102, .unbalanced = 150, .bound = 100, .mean = 100});
  const auto data = data_of(feed);
  EXPECT_EQ(data["balance"]["series"].size(), 1u);
  EXPECT_EQ(data["balance"]["busiest_unbalanced"], 150);
  EXPECT_THAT(data["balance_text"].get<std::string>(), HasSubstr("unbalanced 1.500x"));
}

TEST(Bottleneck, NamesTheWaitAndTheRankThatCausedIt) {
  const auto finding = [](TraceKind reason) {
    const auto feed = feed_of(3, reason);
    return find_bottleneck(feed.report, feed.history.traces);
  };
  EXPECT_THAT(finding(TraceKind::read), HasSubstr("33% of the time, 100% of that while rank 0 was reading storage"));
  EXPECT_THAT(finding(TraceKind::room), HasSubstr("while rank 1 had not received"));
  EXPECT_THAT(finding(TraceKind::memory), HasSubstr("rank 0 waited for memory"));
}

TEST(Bottleneck, ReportsThatThereIsNone) {
  auto feed = feed_of(2);
  for (auto& rank : feed.report.ranks) rank.wait_seconds = 0.0015;
  EXPECT_EQ(find_bottleneck(feed.report, feed.history.traces),
            "Batches were ready when ranks requested them: ranks waited only 1.0% of the time.");
  EXPECT_EQ(find_bottleneck(feed.report, {}), "");
}

TEST(Bottleneck, NamesTheWaitOfAReadersPipeline) {
  const auto feed = feed_of(3);
  const PipelineReport pipeline{.rank = 0, .json = "{}", .finding = "parse is the bottleneck.", .processes = {}};
  EXPECT_EQ(find_bottleneck(feed.report, feed.history.traces, {pipeline}),
            "Ranks waited 33% of the time, 100% of that while rank 0 was waiting for its pipeline. parse is the "
            "bottleneck.");
}

}  // namespace
}  // namespace levada::report
