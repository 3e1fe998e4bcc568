#include "levada/report/balance_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace levada::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

BalanceReport two_steps(std::int64_t max_tokens) {
  BalanceReport report{.by = {.max_tokens = max_tokens}, .ranks = 4};
  report.series.add({1, 32, 3600, 10, 1000, 1500, 950, 1200, 1100, 900, 1, 2, 2, 100});
  report.series.add({1, 32, 3600, 10, 1000, 1700, 1050, 1320, 1300, 900, 3, 9, 5, 80});
  return report;
}

TEST(BalanceReport, ComparesTheBusiestRankWithTheLowerBound) {
  const auto report = two_steps(100);
  EXPECT_DOUBLE_EQ(report.busiest(), 1.0);
  EXPECT_DOUBLE_EQ(report.unbalanced(), 1.6);
  EXPECT_DOUBLE_EQ(report.unused(), 0.1);
  EXPECT_EQ(two_steps(0).unused(), 0);
  EXPECT_EQ(BalanceReport().busiest(), 1);
}

TEST(BalanceReport, PrintsATable) {
  EXPECT_EQ(two_steps(100).to_table(),
            "samples         busiest rank  of the bound  of the mean\n"
            "in their order          1600        1.600x       1.778x\n"
            "balanced                1000        1.000x       1.111x\n"
            "the bound               1000        1.000x       1.111x\n"
            "\n"
            "2 steps of 32 samples and 3.6 k tokens, 2.5% of them padding, over 4 data-parallel ranks, by tokens, free "
            "counts, at most 100 "
            "tokens, as-read\n"
            "10.0 micro-batches per step on each rank; 10% of their tokens unused\n"
            "if ranks wait in each micro-batch, a step takes 1260: 1.050x of its bound, 1.400x of the mean\n"
            "a step takes 1.60x less time than with samples in their order, if its time depends only on work\n");
  EXPECT_THAT(two_steps(0).to_table(), Not(HasSubstr("micro")));
  auto delaying = two_steps(0);
  delaying.by.max_delay = 8;
  EXPECT_THAT(delaying.to_table(), HasSubstr("\n4 samples waited 2.8 steps on average, at most 5\n"));
  EXPECT_THAT(delaying.to_text(), HasSubstr("; 4 samples waited 2.8 steps on average, at most 5"));
}

TEST(BalanceReport, ReportsThatThereAreNoSteps) {
  EXPECT_EQ(BalanceReport().to_table(), "no step to balance\n");
  EXPECT_EQ(BalanceReport().to_text(), "no step to balance");
}

TEST(BalanceReport, WritesTheStepsInOrderAsJson) {
  const auto json = nlohmann::json::parse(two_steps(100).to_json());
  EXPECT_EQ(json["steps"], 2);
  EXPECT_EQ(json["samples"], 64);
  EXPECT_EQ(json["tokens"], 7200);
  EXPECT_EQ(json["padding"], 180);
  EXPECT_EQ(json["micro_batches"], 20);
  EXPECT_EQ(json["busiest"], 2000);
  EXPECT_EQ(json["busiest_unbalanced"], 3200);
  EXPECT_EQ(json["bound"], 2000);
  EXPECT_EQ(json["waiting"], 2520);
  EXPECT_EQ(json["waiting_bound"], 2400);
  EXPECT_EQ(json["mean"], 1800);
  EXPECT_EQ(json["delayed"], 4);
  EXPECT_EQ(json["waited_steps"], 11);
  EXPECT_EQ(json["longest_wait"], 5);
  EXPECT_EQ(json["wait"], "step");
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["by"], "tokens, free counts, at most 100 tokens, as-read");
  EXPECT_DOUBLE_EQ(json["unused_share"], 0.1);
  ASSERT_EQ(json["series"].size(), 2);
  EXPECT_EQ(json["series"][1]["busiest_unbalanced"], 1700);
}

TEST(BalanceReport, SummarizesTheBalanceInASentence) {
  EXPECT_EQ(
      two_steps(100).to_text(),
      "the busiest rank has 1.000x the minimum possible work, unbalanced 1.600x; by tokens, free counts, "
      "at most 100 tokens, as-read; 2.5% of the tokens are padding; 10.0 micro-batches per step, 10% of their tokens "
      "unused");
  auto in_each = two_steps(100);
  in_each.by.wait = Wait::micro;
  EXPECT_THAT(in_each.to_text(),
              HasSubstr("ranks that wait in each micro-batch take 1.050x the minimum possible time; "));
}

}  // namespace
}  // namespace levada::report
