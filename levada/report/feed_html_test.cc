#include "levada/report/feed_html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "levada/report/history.h"

namespace levada::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr std::int64_t ms = 1'000'000;

struct Feed {
  FeedReport report;
  FeedHistory history;
};

/// `ranks` ranks that take ten steps of 10 ms each, and wait 5 ms for each of them while rank 0 does `reason`.
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

std::string page_of(const Feed& feed) {
  return feed_page(feed.report, feed.history);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

/// What the script reads.
std::string data_of(const std::string& page) {
  const std::string opening = "<script type=\"application/json\" id=\"data\">";
  const auto begin = page.find(opening) + opening.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

TEST(EscapeHtml, LeavesNothingThatMeansSomething) {
  EXPECT_EQ(escape_html("a<b>&\"c'"), "a&lt;b&gt;&amp;&quot;c&#39;");
  EXPECT_EQ(escape_html("d\xc3\xa9j\xc3\xa0 vu"), "d\xc3\xa9j\xc3\xa0 vu");
}

TEST(FeedPage, HasALineAndARowForEveryRank) {
  const auto page = page_of(feed_of(4));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(page, HasSubstr("<div class=\"timeline-row\" data-rank=\"" + std::to_string(rank) + "\""));
    EXPECT_THAT(page, HasSubstr("<tr data-rank=\"" + std::to_string(rank) + "\""));
    EXPECT_THAT(page, HasSubstr("title=\"from rank 0 to rank " + std::to_string(rank) + ": 1.0 MiB\""));
  }
  EXPECT_EQ(count(page, "aria-label=\"rank 2: waited 33% of the time\""), 1u);
  EXPECT_EQ(count(page, "class=\"curve c-"), 1u) << "one rank uses memory";
}

TEST(FeedPage, FetchesNothing) {
  const auto page = page_of(feed_of(2));
  for (const char* outside : {"http:", "https:", "src=", "@import", "url(", "<link"}) {
    EXPECT_THAT(page, Not(HasSubstr(outside))) << outside;
  }
}

TEST(FeedPage, EscapesWhateverComesFromOutside) {
  const std::string hostile = "</script><img src=x onerror=\"alert('x')\">&\xff";
  auto feed = feed_of(2);
  feed.report.mesh = feed.report.readers = feed.report.engine_choice = hostile;
  feed.report.ranks[1].coordinates = {{hostile, 1}};
  feed.history.paths = {hostile};
  feed.history.error = hostile;
  const auto page = page_of(feed);
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_EQ(count(page, "</script>"), 2u);
  const auto data = Json::parse(data_of(page));
  EXPECT_THAT(data.at("rows").at(1).at("name").get<std::string>() + data.at("rows").at(2).dump(), HasSubstr("img src"));
}

TEST(FeedPage, GivesTheScriptSharesThatAddUp) {
  const auto data = Json::parse(data_of(page_of(feed_of(3))));
  ASSERT_EQ(data.at("rows").size(), 4u) << "three ranks and a reader";
  for (const auto& row : data.at("rows")) {
    ASSERT_EQ(row.at("shares").size(), data.at("parts"));
    for (const auto& part : row.at("shares")) {
      int sum = 0;
      for (const int share : part) sum += share;
      EXPECT_TRUE(sum == 0 || std::abs(sum - 1000) <= 3) << part;
    }
  }
}

TEST(FeedPage, StaysReadableWithManyRanks) {
  const auto page = page_of(feed_of(500));
  EXPECT_EQ(count(page, "<div class=\"timeline-row\""), 48u + 1u);
  EXPECT_THAT(page, HasSubstr("48 of 500 ranks"));
  EXPECT_EQ(count(page, "<tr data-rank="), 500u);
  EXPECT_LE(count(page, "<td class=\"strong"), 64u);
  EXPECT_LT(page.size(), 3u << 20);
}

TEST(FeedPage, SaysThatTheFeedFailed) {
  auto feed = feed_of(2);
  feed.history.error = "rank 0 could not read step 3";
  EXPECT_THAT(page_of(feed), HasSubstr("<b>The feed failed.</b> rank 0 could not read step 3"));
}

TEST(FeedPage, SaysWhatIsMissing) {
  auto feed = feed_of(3);
  feed.history.traces[2] = {};
  feed.history.traces[0].dropped = 12;
  feed.history.traces[0].stride = 8;
  const auto page = page_of(feed);
  EXPECT_THAT(page, HasSubstr("one step of 8 (12 events left out)"));
  EXPECT_THAT(page, HasSubstr("Of 1 rank nothing was recorded"));
}

TEST(FeedPage, IsThereWithoutAnythingRecorded) {
  FeedReport report;
  report.ranks.emplace_back();
  const auto page = feed_page(report, {});
  EXPECT_THAT(page, HasSubstr("one rank"));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST(Bottleneck, NamesWhatRanksWaitedForAndWhoCausedIt) {
  const auto finding = [](TraceKind reason) {
    const auto feed = feed_of(3, reason);
    return find_bottleneck(feed.report, feed.history.traces);
  };
  EXPECT_THAT(finding(TraceKind::read), HasSubstr("33% of the time, 100% of that while rank 0 was reading storage"));
  EXPECT_THAT(finding(TraceKind::room), HasSubstr("while rank 1 had not received"));
  EXPECT_THAT(finding(TraceKind::memory), HasSubstr("rank 0 waited for memory"));
}

TEST(Bottleneck, SaysThatThereIsNone) {
  auto feed = feed_of(2);
  for (auto& rank : feed.report.ranks) rank.wait_seconds = 0.0015;
  EXPECT_EQ(find_bottleneck(feed.report, feed.history.traces),
            "Batches were there when they were asked for: ranks waited only 1.0% of the time.");
  EXPECT_EQ(find_bottleneck(feed.report, {}), "");
}

TEST(FeedPage, ShowsHowTheWorkOfStepsWasDivided) {
  auto feed = feed_of(2);
  EXPECT_THAT(feed_page(feed.report, feed.history), Not(HasSubstr("id=\"work\"")));
  feed.report.balance.emplace(BalanceReport{.by = {.cost = SampleCost::parse("flops"), .max_tokens = 100}, .ranks = 2});
  for (int step = 0; step < 2000; ++step) {
    feed.report.balance->series.add({.steps = 1,
                                     .samples = 8,
                                     .tokens = 180,
                                     .micro_batches = 1,
                                     .busiest = 102,
                                     .unbalanced = step < 1000 ? 150.0 : 170.0,
                                     .bound = 100,
                                     .mean = 100});
  }
  const auto page = feed_page(feed.report, feed.history);
  EXPECT_THAT(page, HasSubstr("<section class=\"card plot\" id=\"work\">"));
  EXPECT_THAT(page, HasSubstr("balanced <span>1.020x</span>"));
  EXPECT_THAT(page, HasSubstr("in the samples' order <span>1.600x</span>"));
  EXPECT_THAT(page, HasSubstr("viewBox=\"0 0 2000 100\""));
  EXPECT_THAT(page, HasSubstr("flops(linear=24576,quadratic=1), free counts, at most 100 tokens, as-read"));
}

}  // namespace
}  // namespace levada::report
