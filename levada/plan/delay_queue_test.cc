#include "levada/plan/delay_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "levada/plan/step_balance.h"
#include "levada/plan/step_plan.h"

namespace levada {
namespace {

using ::testing::ElementsAre;

std::vector<SampleSize> of_tokens(const std::vector<std::int64_t>& lengths) {
  std::vector<SampleSize> sizes;
  for (const auto length : lengths) sizes.push_back({.tokens = length, .squares = length * length});
  return sizes;
}

std::vector<SampleSize> lognormal(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> lengths(std::log(1500) - 0.72, 1.2);
  std::vector<std::int64_t> drawn(count);
  for (auto& length : drawn) length = std::clamp<std::int64_t>(std::llround(lengths(random)), 1, 32768);
  return of_tokens(drawn);
}

/// Returns all steps of a stream.
std::vector<DelayQueue::Step> steps_of(std::span<const SampleSize> stream, int ranks, std::int64_t count,
                                       std::int64_t max_delay) {
  DelayQueue queue(ranks, SampleCost::parse("flops"), max_delay);
  std::vector<DelayQueue::Step> steps;
  for (std::int64_t at = 0;;) {
    const auto rest = stream.subspan(static_cast<std::size_t>(at));
    const auto next = rest.first(std::min(rest.size(), static_cast<std::size_t>(2 * count)));
    // A run that resumes here must choose the same.
    DelayQueue resumed(ranks, SampleCost::parse("flops"), max_delay, queue.waiting());
    auto step = queue.choose(at, next, count);
    EXPECT_EQ(resumed.choose(at, next, count).numbers, step.numbers);
    EXPECT_EQ(resumed.waiting(), queue.waiting());
    if (step.numbers.empty()) break;
    at += step.taken;
    steps.push_back(std::move(step));
  }
  EXPECT_TRUE(queue.waiting().empty());
  return steps;
}

TEST(DelayQueue, YieldsEverySampleOnceInFullSteps) {
  std::mt19937 random(1);
  for (int turn = 0; turn < 100; ++turn) {
    const auto ranks = 1 + static_cast<int>(random() % 8);
    const auto count = ranks * (1 + static_cast<std::int64_t>(random() % 8));
    const auto max_delay = static_cast<std::int64_t>(random() % 6);
    const auto stream = lognormal(random() % 500, turn);
    std::set<std::int64_t> given;
    const auto steps = steps_of(stream, ranks, count, max_delay);
    for (const auto& step : steps) {
      ASSERT_EQ(step.numbers.size(), step.sizes.size());
      ASSERT_TRUE(std::ranges::is_sorted(step.numbers));
      for (std::size_t i = 0; i < step.numbers.size(); ++i) {
        ASSERT_TRUE(given.insert(step.numbers[i]).second);
        ASSERT_EQ(step.sizes[i], stream[static_cast<std::size_t>(step.numbers[i])]);
      }
      ASSERT_TRUE(std::ssize(step.numbers) == count || &step == &steps.back());
      ASSERT_LE(step.longest_wait, max_delay);
    }
    ASSERT_EQ(given.size(), stream.size());
  }
}

TEST(DelayQueue, KeepsTheOrderWithoutDelay) {
  const auto stream = of_tokens({9000, 1, 1, 1, 1});
  const auto steps = steps_of(stream, 2, 2, 0);
  ASSERT_EQ(steps.size(), 3);
  EXPECT_THAT(steps[0].numbers, ElementsAre(0, 1));
  EXPECT_THAT(steps[2].numbers, ElementsAre(4));
}

TEST(DelayQueue, DelaysNothingForASingleRank) {
  for (const auto& step : steps_of(lognormal(100, 4), 1, 5, 8)) EXPECT_EQ(step.delayed, 0);
}

TEST(DelayQueue, WaitsForOneSampleOfAKindPerRank) {
  // Two long samples in different steps, and one of another kind, too late to be grouped.
  const auto stream = of_tokens({9000, 1, 1, 1, 1, 1, 9500, 1, 1, 1, 1, 1, 1, 1, 30000, 1, 1, 1, 1, 1});
  const auto steps = steps_of(stream, 2, 4, 10);
  ASSERT_EQ(steps.size(), 5);
  EXPECT_THAT(steps[0].numbers, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(steps[1].numbers, ElementsAre(5, 7, 8, 9));
  EXPECT_THAT(steps[2].numbers, ElementsAre(0, 6, 10, 11));
  EXPECT_EQ(steps[2].delayed, 2);
  EXPECT_EQ(steps[2].waited, 3);
  EXPECT_EQ(steps[2].longest_wait, 2);
  EXPECT_THAT(steps[4].numbers, ElementsAre(14, 17, 18, 19)) << "no sample waits at the end";
}

TEST(DelayQueue, NeverExceedsTheMaximumDelay) {
  std::vector<std::int64_t> lengths(100, 10);
  lengths[1] = 10'000;
  const auto steps = steps_of(of_tokens(lengths), 4, 4, 3);
  EXPECT_THAT(steps[2].numbers, ElementsAre(9, 10, 11, 12));
  EXPECT_THAT(steps[3].numbers, ElementsAre(1, 13, 14, 15));
  EXPECT_EQ(steps[3].longest_wait, 3);
}

TEST(DelayQueue, EvensOutTheWorkOfSteps) {
  const auto stream = lognormal(512 * 100, 3);
  const auto cost = SampleCost::parse("flops");
  const auto bound_of_mean = [&](std::int64_t max_delay) {
    StepBalance total;
    for (const auto& step : steps_of(stream, 64, 512, max_delay)) {
      total += balance_of(plan_step(step.sizes, 64, {.cost = cost}), step.sizes, {.cost = cost});
    }
    return total.busiest / total.mean;
  };
  EXPECT_GT(bound_of_mean(0), 3.3);
  EXPECT_LT(bound_of_mean(16), 1.35);
}

}  // namespace
}  // namespace levada
