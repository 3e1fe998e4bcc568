#include "levada/report/feed_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "levada/base/error.h"

namespace levada::report {
namespace {

using ::testing::HasSubstr;

RankReport rank_report(int rank, int dp, int tp, const std::string& digest) {
  RankReport report;
  report.rank = rank;
  report.coordinates = {{"dp", dp}, {"tp", tp}};
  report.batches = 10;
  report.bytes = 1000;
  report.wait_seconds = 0.25;
  report.seconds = 2;
  report.field_reports = {{"tokens", digest, "int64", {8, 1024}}};
  return report;
}

FeedReport four_ranks() {
  FeedReport report;
  report.mesh = "dp=2,tp=2";
  report.engine = "shm";
  report.engine_choice = "shm: all 4 ranks are on one host";
  report.readers = "one";
  report.dp = 2;
  report.batch = 8;
  report.sequence = 1024;
  report.steps = 10;
  report.samples = 160;
  report.end_cause = "exhausted";
  report.bytes_consumed = 4000;
  report.peers = {{"tokens", {0, 1}}, {"tokens", {2, 3}}};
  for (int rank = 0; rank < 4; ++rank) {
    report.ranks.push_back(rank_report(rank, rank / 2, rank % 2, rank < 2 ? "aaaabbbbccccdddd" : "1111222233334444"));
  }
  report.ranks[0].is_reader = true;
  report.ranks[0].bytes_sent = 2000;
  report.ranks[0].bytes_read = 4040;
  report.ranks[0].bytes_consumed = 4000;
  return report;
}

TEST(FeedReport, CountsSamplesAndTokensOncePerDataParallelRank) {
  const auto report = four_ranks();
  EXPECT_EQ(report.samples, 160);
  EXPECT_EQ(report.tokens(), 163840);
  EXPECT_DOUBLE_EQ(report.tokens_per_second(), 81920);
}

TEST(FeedReport, SumsTheBytesReadAndDelivered) {
  const auto report = four_ranks();
  EXPECT_EQ(report.bytes_read(), 4040u);
  EXPECT_EQ(report.bytes_delivered(), 4000u);
  EXPECT_EQ(report.bytes_sent(), 2000u);
  EXPECT_DOUBLE_EQ(report.read_amplification(), 1.01);
}

TEST(FeedReport, JsonHasEveryKey) {
  const auto json = nlohmann::json::parse(four_ranks().to_json());
  for (const char* key : {"steps", "samples", "tokens", "bytes_read", "prepare_bytes", "bytes_sent", "bytes_delivered",
                          "read_amplification", "seconds", "tokens_per_s", "engine", "engine_choice", "end",
                          "skipped_lines", "prepare_s", "run"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  ASSERT_EQ(json["ranks"].size(), 4u);
  const auto& third = json["ranks"][2];
  EXPECT_EQ(third["rank"], 2);
  EXPECT_EQ(third["coords"], (nlohmann::json{{"dp", 1}, {"tp", 0}}));
  EXPECT_EQ(third["batches"], 10);
  EXPECT_EQ(third["bytes"], 1000);
  EXPECT_EQ(third["wait_s"], 0.25);
  const nlohmann::json tokens = {{"digest", "1111222233334444"}, {"dtype", "int64"}, {"shape", {8, 1024}}};
  EXPECT_EQ(third["fields"]["tokens"], tokens);
  EXPECT_EQ(json["peers_identical"], true);
}

TEST(FeedReport, ShowsOneRowPerRankWithShortDigests) {
  EXPECT_THAT(four_ranks().to_text(), HasSubstr("  rank  coords   batches   bytes      wait  tokens\n"
                                                "     0  dp0 tp0       10  1000 B  250.0 ms  aaaabbbb\n"
                                                "     1  dp0 tp1       10  1000 B  250.0 ms  aaaabbbb\n"
                                                "     2  dp1 tp0       10  1000 B  250.0 ms  11112222\n"
                                                "     3  dp1 tp1       10  1000 B  250.0 ms  11112222\n"));
}

TEST(FeedReport, SummarizesTheTableInWords) {
  const auto text = four_ranks().to_text();
  EXPECT_THAT(text, HasSubstr("per step to each data-parallel rank, over shm: all 4 ranks are on one host\n"));
  EXPECT_THAT(text, HasSubstr("163,840 tokens in 160 samples of 1,024; the data ended after 10 steps"));
  EXPECT_THAT(text, HasSubstr("81.9 k tokens/s, 2.0 s in all"));
  auto resumed = four_ranks();
  resumed.steps = 0;
  EXPECT_THAT(resumed.to_text(), HasSubstr("; finished: --load-state or --skip begins at the end of the data"));
  EXPECT_THAT(text, HasSubstr("2.0 KiB in messages; together the ranks received 3.9 KiB"));
  EXPECT_THAT(text, HasSubstr("1 rank read 3.9 KiB for 3.9 KiB of data: read amplification 1.01"));
  EXPECT_THAT(text, HasSubstr("tensor-parallel peers received identical bits (digests of 2 groups compared)"));
  EXPECT_THAT(text, HasSubstr("--readers all"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(FeedReport, ReportsSkippedLinesAndIndexing) {
  auto report = four_ranks();
  report.skipped_lines = 3;
  report.skipped_places = {"a.jsonl:7"};
  report.prepare_bytes = 2048;
  report.prepare_seconds = 1.5;
  EXPECT_THAT(report.to_text(), HasSubstr("; skipped 3 bad lines, at a.jsonl:7, ..."));
  EXPECT_THAT(report.to_text(), HasSubstr("(and 2.0 KiB in 1.5 s once, before the first sample)"));
}

TEST(FeedReport, ReportsTheSharesOfSourcesAndThePadding) {
  auto report = four_ranks();
  EXPECT_EQ(report.padding_share(), 0);
  report.sources = {{"code", 120, 120 * 1024, 0.75}, {"web", 40, 40 * 1024 - 8192, 0.25}};
  EXPECT_NEAR(report.padding_share(), 0.05, 1e-12);
  EXPECT_THAT(report.to_text(), HasSubstr("75.0% code (120 samples), 25.0% web (40 samples)"));
  EXPECT_THAT(report.to_text(), HasSubstr("in 160 samples of 1,024, 5.00% padding; the data ended"));
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_EQ(json["padding_share"], report.padding_share());
  EXPECT_EQ(json["sources"][1]["name"], "web");
  EXPECT_EQ(json["sources"][1]["samples"], 40);
  EXPECT_EQ(json["sources"][1]["tokens"], 40 * 1024 - 8192);
  EXPECT_EQ(json["sources"][1]["share"], 0.25);
}

TEST(FeedReport, NamesPeersWhoseBitsDiffer) {
  auto report = four_ranks();
  report.ranks[3].field_reports[0].digest = "9999";
  EXPECT_THAT(report.to_text(), HasSubstr("ranks 2 and 3 should hold the same tokens, but theirs differ"));
  EXPECT_EQ(nlohmann::json::parse(report.to_json())["peers_identical"], false);
}

TEST(FeedReport, EscapesTheFieldInWhichPeersDiffer) {
  auto report = four_ranks();
  report.peers = {{"\x1b[2J", {0, 1}}};
  report.ranks[1].field_reports.push_back({.name = "\x1b[2J"});
  EXPECT_EQ(find_difference(report.ranks, report.peers),
            "ranks 0 and 1 should hold the same \\x1b[2J, but theirs differ");
}

TEST(FeedReport, NamesAPeerThatLacksTheField) {
  auto report = four_ranks();
  report.ranks[1].field_reports.clear();
  EXPECT_EQ(find_difference(report.ranks, report.peers),
            "ranks 0 and 1 should hold the same tokens, but theirs differ");
}

TEST(FeedReport, ShowsADashForAFieldThatARankDoesNotReceive) {
  auto report = four_ranks();
  report.peers.clear();
  report.ranks[1].field_reports.clear();
  EXPECT_THAT(report.to_text(), HasSubstr("     1  dp0 tp1       10  1000 B  250.0 ms  -\n"));
}

TEST(RankReport, RoundTrips) {
  auto report = rank_report(3, 1, 1, "aaaa");
  report.is_reader = true;
  report.bytes_read = 17;
  report.bytes_consumed = 16;
  report.prepare_bytes = 5;
  report.copied_batches = 2;
  report.digest_seconds = 0.5;
  const Bytes bytes = levada::encode(report);
  EXPECT_EQ(decode<RankReport>(bytes), report);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode<RankReport>(ByteView(bytes).first(size)), CorruptMessage) << size;
  }
}

}  // namespace
}  // namespace levada::report
