#include "levada/plan/step_balance.h"

#include <gmock/gmock.h>

#include <random>

#include "levada/plan/step_plan_testing.h"
#include "levada/plan/work_bound.h"

namespace levada {
namespace {

using test::balance_in;
using test::of_tokens;
using test::plan_step;
using test::Sizes;
using test::StepOptions;

TEST(StepBalance, IsSummedOverSteps) {
  StepBalance sum{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  sum += {10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 5, 140};
  EXPECT_EQ(sum, (StepBalance{11, 22, 33, 44, 55, 66, 77, 88, 99, 110, 121, 132, 13, 154}));
}

TEST(BalanceSeries, PreservesTheOrderAndTheSumOfAnyNumberOfSteps) {
  BalanceSeries series;
  EXPECT_EQ(series.total(), StepBalance());
  std::int64_t samples = 0;
  for (std::int64_t step = 1; step <= 5000; ++step) {
    series.add({.steps = 1, .samples = step});
    samples += step;
    ASSERT_EQ(series.total(), (StepBalance{.steps = step, .samples = samples}));
    ASSERT_LE(series.entries().size(), BalanceSeries::max_entries);
    ASSERT_GE(series.entries().size(), std::min<std::size_t>(BalanceSeries::max_entries / 2, step));
  }
  std::int64_t at = 0;
  for (const auto& entry : series.entries()) {
    EXPECT_EQ(entry.samples, (at + 1 + at + entry.steps) * entry.steps / 2);
    at += entry.steps;
  }
}

TEST(StepBalance, ComparesWithAnUnbalancedDivision) {
  const auto samples = of_tokens({8, 7, 6, 5, 4});
  const StepOptions options{.ranks = 2};
  EXPECT_EQ(balance_of(plan_step(samples, options), samples, balance_in(options)),
            (StepBalance{1, 5, 30, 1, 15, 15, 15, 15, 15, 15}));
  const auto ascending = of_tokens({1, 2, 3, 10});
  EXPECT_EQ(balance_of(plan_step(ascending, options), ascending, balance_in(options)),
            (StepBalance{1, 4, 16, 1, 10, 13, 10, 10, 10, 8}));
}

TEST(StepBalance, MeasuresTheWorseOfTwoParts) {
  const Balance options{.cost = SampleCost::parse("weights")};
  const Sizes samples = {{.weights = {1, 30}}, {.weights = {1, 30}}, {.weights = {1, 10}}, {.weights = {1, 10}}};
  const StepPlan in_order{.ranks = 2, .num_micro = 1, .micros = {{0, 1}, {2, 3}}};
  const StepPlan even{.ranks = 2, .num_micro = 1, .micros = {{0, 2}, {1, 3}}};
  // The bounds are 2 for the first part and 40 for the second. In order, the first rank has 60 of the second.
  EXPECT_EQ(balance_of(in_order, samples, options), (StepBalance{.steps = 1,
                                                                 .samples = 4,
                                                                 .micro_batches = 1,
                                                                 .busiest = 3,
                                                                 .unbalanced = 3,
                                                                 .bound = 2,
                                                                 .waiting = 3,
                                                                 .waiting_bound = 2,
                                                                 .mean = 2}));
  EXPECT_EQ(balance_of(even, samples, options).busiest, 2);
}

TEST(StepBalance, MeasuresTheSecondPartIfTheFirstHasNoWork) {
  const Sizes samples = {{.weights = {0, 3}}, {.weights = {0, 1}}};
  const auto balance = balance_of({.ranks = 2, .num_micro = 1, .micros = {{0}, {1}}}, samples,
                                  Balance{.cost = SampleCost::parse("weights")});
  EXPECT_EQ(balance.busiest, 3);
  EXPECT_EQ(balance.bound, 3);
  EXPECT_EQ(balance.mean, 2);
}

TEST(StepBalance, BoundCountsTokensThatOtherRanksCannotHold) {
  // The second rank has room for 10 of the other samples' 19 tokens: the first rank also gets 9, whose work is at least
  // 1.
  const Sizes samples = {{.tokens = 1, .weights = {10, 0}},
                         {.tokens = 9, .weights = {2, 0}},
                         {.tokens = 9, .weights = {2, 0}},
                         {.tokens = 1, .weights = {0, 0}}};
  const Balance options{.cost = SampleCost::parse("weights"), .max_tokens = 10};
  const StepPlan plan{.ranks = 2, .num_micro = 1, .micros = {{0, 1}, {2, 3}}};
  const auto balance = balance_of(plan, samples, options);
  EXPECT_EQ(balance.busiest, 12);
  EXPECT_EQ(balance.bound, 11);
}

/// Returns the least work of the busiest rank over all divisions with at most max_of_rank tokens on a rank; INT64_MAX
/// if there are none.
std::int64_t least_of_all(const std::vector<Demand>& demands, std::int64_t max_of_rank, std::vector<Demand>& ranks,
                          std::size_t next) {
  if (next == demands.size()) {
    return std::ranges::max_element(ranks, {}, [](const Demand& rank) { return rank.work.first; })->work.first;
  }
  auto least = INT64_MAX;
  for (auto& rank : ranks) {
    if (rank.tokens + demands[next].tokens > max_of_rank) continue;
    rank.tokens += demands[next].tokens;
    rank.work.first += demands[next].work.first;
    least = std::min(least, least_of_all(demands, max_of_rank, ranks, next + 1));
    rank.tokens -= demands[next].tokens;
    rank.work.first -= demands[next].work.first;
  }
  return least;
}

TEST(WorkBound, NeverExceedsTheBestDivision) {
  std::mt19937 random(5);
  int divided = 0, above_mean_and_costliest = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<Demand> demands(2 + random() % 6);
    std::vector<Demand> ranks(2 + random() % 2);
    std::int64_t tokens = 0, work = 0, costliest = 0, longest = 0;
    for (auto& demand : demands) {
      demand.tokens = static_cast<std::int64_t>(random() % 20);
      demand.work.first = random() % 2 == 0 ? demand.tokens * demand.tokens : static_cast<std::int64_t>(random() % 50);
      tokens += demand.tokens;
      work += demand.work.first;
      costliest = std::max(costliest, demand.work.first);
      longest = std::max(longest, demand.tokens);
    }
    const auto count = static_cast<std::int64_t>(ranks.size());
    const auto room = std::max(longest, tokens / count + static_cast<std::int64_t>(random() % 10));
    const auto least = least_of_all(demands, room, ranks, 0);
    if (least == INT64_MAX) continue;
    ++divided;
    const auto bound = work_bound(demands, &Work::first, count, room);
    ASSERT_LE(bound, least);
    const auto plain = std::max((work + count - 1) / count, costliest);
    ASSERT_GE(bound, plain);
    if (bound > plain) ++above_mean_and_costliest;
  }
  EXPECT_GT(divided, 500);
  EXPECT_GT(above_mean_and_costliest, 20);
}

TEST(WorkBound, SupportsTokensAndWorkUpTo62Bits) {
  const std::int64_t half = std::int64_t{1} << 61;
  const std::vector<Demand> demands{{{half - 1, 0}, half - 1}, {{half - 1, 0}, half - 1}};
  EXPECT_EQ(work_bound(demands, &Work::first, 2, half - 1), half - 1);
  EXPECT_EQ(work_bound(demands, &Work::second, 2, half - 1), 0);
  EXPECT_EQ(tokens_of_rank(INT64_MAX, 3), 2 * half);
}

TEST(WaitingBound, CountsTokensThatAMicroBatchCannotHold) {
  const std::vector<Demand> demands{{{10, 0}, 2}, {{4, 0}, 1}, {{4, 0}, 1}, {{4, 0}, 1}};
  // Ranks wait 10 for the costliest sample. Two ranks do at most 20 of the 22 in that time, if they have room for all 5
  // tokens. With room for 4, they do at most 18: the cheapest token is left, which costs 4.
  EXPECT_EQ(waiting_bound(demands, &Work::first, 2, 3), 10 + 1);
  EXPECT_EQ(waiting_bound(demands, &Work::first, 2, 2), 10 + 2);
}

}  // namespace
}  // namespace levada
