#include "levada/plan/context_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "levada/base/error.h"
#include "levada/plan/step_plan_testing.h"

namespace levada {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Lengths = std::vector<std::int64_t>;

std::string refusal_of(const Lengths& lengths, int ranks, const ContextBalance& balance) {
  try {
    plan_context(lengths, ranks, balance);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

std::vector<int> sizes_of(const std::vector<ContextBlock>& blocks) {
  std::vector<int> sizes;
  for (const ContextBlock& block : blocks) sizes.push_back(block.size);
  return sizes;
}

/// Checks the conditions that every plan fulfills.
void expect_sound(const ContextPlan& plan, const Lengths& lengths, int ranks, const ContextBalance& balance) {
  ASSERT_EQ(plan.ranks, ranks);
  ASSERT_FALSE(plan.micros.empty());
  std::vector<std::size_t> all;
  for (const auto& blocks : plan.micros) {
    int next = 0;
    for (const ContextBlock& block : blocks) {
      ASSERT_EQ(block.first, next);
      next += block.size;
      ASSERT_TRUE(std::has_single_bit(static_cast<unsigned>(block.size)));
      ASSERT_EQ(block.first % block.size, 0);
      ASSERT_LE(block.size, balance.max_cp);
      ASSERT_FALSE(block.samples.empty());
      ASSERT_TRUE(std::ranges::is_sorted(block.samples));
      std::int64_t tokens = 0;
      for (const std::size_t sample : block.samples) tokens += padded_for(lengths.at(sample), block.size);
      ASSERT_LE(tokens, balance.max_tokens * block.size);
      all.insert(all.end(), block.samples.begin(), block.samples.end());
    }
    ASSERT_EQ(next, ranks);
  }
  std::ranges::sort(all);
  std::vector<std::size_t> expected(lengths.size());
  std::iota(expected.begin(), expected.end(), std::size_t{0});
  ASSERT_EQ(all, expected);
}

/// Document lengths with a share of `long_share` that are log-uniform from 16k to 256k.
Lengths draw_lengths(std::mt19937& random, std::size_t count, double long_share) {
  std::uniform_real_distribution<double> uniform(0, 1);
  Lengths lengths;
  for (const SampleSize& size : test::lognormal(random, count, 32768)) {
    const bool is_long = uniform(random) < long_share;
    lengths.push_back(is_long ? static_cast<std::int64_t>(16384 * std::exp2(4 * uniform(random))) : size.tokens);
  }
  return lengths;
}

/// Returns the mean of step_time() over context_bound(), of 30 steps.
double mean_over_bound(int ranks, std::size_t samples_per_rank, double long_share, const ContextBalance& balance) {
  std::mt19937 random(7);
  double sum = 0;
  constexpr int steps = 30;
  for (int step = 0; step < steps; ++step) {
    const auto lengths = draw_lengths(random, static_cast<std::size_t>(ranks) * samples_per_rank, long_share);
    const auto plan = plan_context(lengths, ranks, balance);
    const auto bound = context_bound(lengths, ranks, static_cast<int>(plan.micros.size()), balance);
    sum += static_cast<double>(step_time(plan, lengths, balance)) / static_cast<double>(bound);
  }
  return sum / steps;
}

TEST(ContextPlan, CutsALongSequenceOverTheRemainingRanks) {
  const Lengths lengths{1000, 32000, 1000, 1000, 1000};
  const auto plan = plan_context(lengths, 8, {.max_tokens = 8192, .max_cp = 4});
  ASSERT_EQ(plan.micros.size(), 1u);
  EXPECT_THAT(sizes_of(plan.micros[0]), ElementsAre(4, 1, 1, 1, 1));
  EXPECT_THAT(plan.at(3, 0).samples, ElementsAre(1));
  EXPECT_EQ(&plan.at(3, 0), &plan.micros[0][0]);
  EXPECT_EQ(&plan.at(4, 0), &plan.micros[0][1]);
}

TEST(ContextPlan, CutsASequenceIfRanksWouldWaitForIt) {
  const Lengths lengths{32000, 1000, 1000, 1000, 1000};
  const auto plan = plan_context(lengths, 8, {.max_tokens = 32768, .max_cp = 4});
  EXPECT_THAT(sizes_of(plan.micros[0]), ElementsAre(4, 1, 1, 1, 1));
}

TEST(ContextPlan, KeepsEqualSequencesOnOneRankEach) {
  const auto plan = plan_context(Lengths(64, 4000), 8, {.max_tokens = 8192, .max_cp = 8});
  EXPECT_EQ(plan.micros.size(), 4u);
  for (const auto& blocks : plan.micros) EXPECT_EQ(sizes_of(blocks), std::vector<int>(8, 1));
}

TEST(ContextPlan, IsSoundAndNoWorseThanBlocksOfOneSize) {
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    const int ranks = std::array{1, 2, 3, 4, 6, 8, 12, 16}[random() % 8];
    ContextBalance balance{.max_tokens = 1 + static_cast<std::int64_t>(random() % 2000), .max_cp = ranks & -ranks};
    if (random() % 2 == 0) balance.max_cp = std::max(1, balance.max_cp / 2);
    if (random() % 2 == 0) balance.wait = Wait::step;
    if (random() % 2 == 0) balance.cost = {.linear = 10, .hop = 10, .start = static_cast<std::int64_t>(random() % 999)};
    const auto longest = 1 + balance.max_tokens * balance.max_cp / static_cast<std::int64_t>(1 + random() % 8);
    Lengths lengths(1 + random() % 60);
    for (auto& length : lengths) length = static_cast<std::int64_t>(random()) % longest;
    const auto text = testing::PrintToString(lengths) + " on " + std::to_string(ranks) + ", at most " +
                      std::to_string(balance.max_tokens) + ", max_cp " + std::to_string(balance.max_cp);
    ContextPlan plan;
    try {
      plan = plan_context(lengths, ranks, balance);
    } catch (const InvalidArgument&) {
      ++refused;
      continue;
    }
    ASSERT_NO_FATAL_FAILURE(expect_sound(plan, lengths, ranks, balance)) << text;
    ASSERT_EQ(plan, plan_context(lengths, ranks, balance)) << text;
    const auto time = step_time(plan, lengths, balance);
    ASSERT_GE(time, context_bound(lengths, ranks, static_cast<int>(plan.micros.size()), balance)) << text;
    for (int size = 1; size <= balance.max_cp; size *= 2) {
      try {
        const auto fixed = plan_static_context(lengths, ranks, size, balance);
        ASSERT_NO_FATAL_FAILURE(expect_sound(fixed, lengths, ranks, balance)) << text;
        const auto time_of_fixed = step_time(fixed, lengths, balance);
        ASSERT_LE(time, time_of_fixed + time_of_fixed / 200) << text << ", size " << size;
      } catch (const InvalidArgument&) {
        continue;
      }
    }
  }
  EXPECT_LT(refused, 600);
}

TEST(ContextPlan, IsCloseToTheBound) {
  EXPECT_LT(mean_over_bound(8, 32, 0, {.max_tokens = 32768, .max_cp = 8}), 1.005);
  EXPECT_LT(mean_over_bound(32, 32, 0, {.max_tokens = 8192, .max_cp = 32}), 1.010);
  EXPECT_LT(mean_over_bound(32, 16, 0.03, {.max_tokens = 32768, .max_cp = 32}), 1.025);
}

TEST(ContextPlan, ABlockWaitsOnlyForItsOwnRanks) {
  const ContextBalance balance{.cost = {.linear = 1, .quadratic = 0, .exchange_in_host = 0, .hop = 0, .start = 0},
                               .max_tokens = 100,
                               .max_cp = 2};
  const Lengths lengths{10, 50, 8, 20, 4, 40, 2, 2};
  const ContextPlan plan{.ranks = 4,
                         .micros = {{{0, 1, {0}}, {1, 1, {1}}, {2, 2, {2}}}, {{0, 2, {3}}, {2, 1, {4}}, {3, 1, {5}}}}};
  auto at_the_end = balance;
  at_the_end.wait = Wait::step;
  EXPECT_EQ(step_time(plan, lengths, at_the_end), 50 + 10);
  EXPECT_EQ(step_time(plan, lengths, balance), 50 + 40);
}

TEST(ContextPlan, RejectsInvalidOptions) {
  const Lengths lengths(12, 5);
  EXPECT_THAT(refusal_of(lengths, 0, {.max_tokens = 8}), HasSubstr("ranks must be positive, got 0"));
  EXPECT_THAT(refusal_of(lengths, 4, {}), HasSubstr("max_tokens must be from 1 to 2^31, got 0"));
  for (const int size : {-1, 0, 3, 8}) {
    EXPECT_THAT(
        refusal_of(lengths, 12, {.max_tokens = 8, .max_cp = size}),
        HasSubstr("a power of two that divides the 12 dp x cp ranks, so at most 4, got " + std::to_string(size)));
  }
}

TEST(ContextPlan, RejectsCostsThatOverflow) {
  const ContextBalance large{
      .cost = {.quadratic = std::int64_t{1} << 32}, .max_tokens = std::int64_t{1} << 31, .max_cp = 2};
  EXPECT_THAT(refusal_of({std::int64_t{1} << 31, 5}, 2, large), HasSubstr("does not fit in 62 bits"));
  EXPECT_THAT(refusal_of({std::int64_t{1} << 13, 5}, 2, large), HasSubstr("does not fit in 56 bits"));
  EXPECT_THAT(refusal_of({5, 5}, 2, {.cost = {.hop = -1}, .max_tokens = 8}),
              HasSubstr("costs must be from 0 to 2^32, got -1"));
}

TEST(ContextPlan, NamesACoefficientThatIsTooSmallBeforeAnySampleIsDivided) {
  const auto check = [](const char* cost) {
    check_balance({.cost = SampleCost::parse(cost), .max_tokens = 64, .max_cp = 2});
  };
  EXPECT_THAT(([&] { check("flops(linear=29,quadratic=0)"); }),
              ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("linear is 29 in the cost")));
  check("flops(linear=30,quadratic=0)");
  check("flops(hidden=8)");
}

TEST(ContextPlan, RejectsSamplesThatDoNotFit) {
  EXPECT_THAT(refusal_of({5, 5}, 8, {.max_tokens = 8, .max_cp = 2}),
              HasSubstr("a step of 2 sample(s) cannot be divided over 8 ranks in blocks of at most 2"));
  EXPECT_THAT(refusal_of({5, -1}, 2, {.max_tokens = 8}), HasSubstr("sample 1 of the step has -1 tokens"));
  EXPECT_THAT(refusal_of({5, 40, 5}, 4, {.max_tokens = 8, .max_cp = 4}),
              HasSubstr("sample 1 of the step has 40 tokens, but 4 ranks of at most 8 tokens each hold 32"));
  EXPECT_THAT(refusal_of({8, 8, 8}, 2, {.max_tokens = 8, .max_cp = 1}),
              HasSubstr("the 3 samples of the step do not fit on 2 ranks"));
}

}  // namespace
}  // namespace levada
