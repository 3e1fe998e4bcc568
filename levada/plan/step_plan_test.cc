#include "levada/plan/step_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <random>

#include "levada/base/error.h"
#include "levada/plan/step_balance.h"
#include "levada/plan/step_plan_testing.h"

namespace levada {
namespace {

using test::lognormal;
using test::of_tokens;
using test::plan_step;
using test::Sizes;
using test::StepOptions;
using test::tokens_of;
using testing::ElementsAre;
using testing::HasSubstr;

std::int64_t fewest_micros(std::span<const SampleSize> samples, const StepOptions& options) {
  const std::int64_t room = options.ranks * options.max_tokens;
  return (tokens_of(samples) + room - 1) / room;
}

std::string refusal_of(const Sizes& samples, const StepOptions& options) {
  try {
    plan_step(samples, options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

TEST(StepPlan, DividesTheWorkAboutEvenlyOverRanks) {
  const auto plan = plan_step(of_tokens({8, 7, 6, 5, 4}), {.ranks = 2});
  EXPECT_EQ(plan.num_micro, 1);
  EXPECT_THAT(plan.at(0, 0), ElementsAre(0, 1));
  EXPECT_THAT(plan.at(1, 0), ElementsAre(2, 3, 4));
}

TEST(StepPlan, ContainsEverySampleOnceForAnySizes) {
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    StepOptions options{.ranks = 1 + static_cast<int>(random() % 9)};
    options.cost = SampleCost::parse(std::array{"tokens", "flops", "weights"}[random() % 3]);
    options.sizes = random() % 2 == 0 ? PartSizes::any : PartSizes::equal;
    options.order = std::array{MicroOrder::as_read, MicroOrder::long_first, MicroOrder::paired}[random() % 3];
    if (options.sizes == PartSizes::any && random() % 2 == 0) options.wait = Wait::micro;
    const auto longest = static_cast<std::int64_t>(1 + random() % 100);
    const auto shortest = random() % 2 == 0 ? 0 : longest / 2;
    options.max_tokens = random() % 3 == 0 ? 0 : longest + static_cast<std::int64_t>(random() % 300);
    Sizes samples(static_cast<std::size_t>(options.ranks) + random() % 60);
    for (auto& sample : samples) {
      sample = of_tokens(shortest + static_cast<std::int64_t>(random()) % (longest - shortest + 1));
      sample.weights = {static_cast<std::int64_t>(random() % 50), static_cast<std::int64_t>(random() % 2000)};
    }
    try {
      const auto plan = plan_step(samples, options);
      test::expect_sound(plan, samples, options);
      if (testing::Test::HasFatalFailure()) return;
      EXPECT_EQ(plan_step(samples, options), plan);
    } catch (const InvalidArgument& error) {
      // There are hardly more samples than micro-batches.
      ++refused;
      EXPECT_THAT(error.what(), HasSubstr("with a sample in each"));
      EXPECT_LT(samples.size(), static_cast<std::size_t>(options.ranks * (2 * fewest_micros(samples, options) + 2)));
    }
  }
  EXPECT_THAT(refused, testing::AllOf(testing::Gt(0), testing::Lt(300)));
}

/// Returns the least that ranks can wait for in each micro-batch, by trying every division of a few samples.
std::int64_t least_waiting(const Sizes& samples, std::size_t ranks, std::size_t count, std::int64_t max_tokens) {
  auto least = INT64_MAX;
  std::vector<std::size_t> at(samples.size());
  const auto parts = ranks * count;
  for (bool is_last = false; !is_last;) {
    std::vector<std::int64_t> tokens(parts);
    for (std::size_t i = 0; i < samples.size(); ++i) tokens[at[i]] += samples[i].tokens;
    if (std::ranges::all_of(tokens, [&](std::int64_t each) { return each > 0 && each <= max_tokens; })) {
      std::int64_t waiting = 0;
      for (std::size_t micro = 0; micro < count; ++micro) {
        waiting += std::ranges::max(std::span(tokens).subspan(micro * ranks, ranks));
      }
      least = std::min(least, waiting);
    }
    is_last = std::ranges::all_of(at, [&](std::size_t part) { return part == parts - 1; });
    for (std::size_t i = 0; !is_last && ++at[i] == parts; ++i) at[i] = 0;
  }
  return least;
}

TEST(StepPlan, WaitsInEachMicroBatchAreNearTheOptimum) {
  std::mt19937 random(7);
  int compared = 0;
  double sum = 0;
  for (int round = 0; round < 200; ++round) {
    const StepOptions options{.ranks = 2, .max_tokens = 20, .wait = Wait::micro};
    Sizes samples(7);
    for (auto& sample : samples) sample = of_tokens(1 + static_cast<std::int64_t>(random() % 12));
    const auto plan = plan_step(samples, options);
    test::expect_sound(plan, samples, options);
    if (plan.num_micro != 2) continue;
    const auto balance = balance_of(plan, samples, test::balance_in(options));
    const auto least = static_cast<double>(least_waiting(samples, 2, 2, 20));
    ASSERT_LE(balance.waiting_bound, least);
    ASSERT_LE(balance.waiting, 1.2 * least);
    sum += balance.waiting / least;
    ++compared;
  }
  EXPECT_GT(compared, 100);
  EXPECT_LE(sum / compared, 1.02);
}

TEST(StepPlan, WaitsInEachMicroBatchAreNearTheBoundForManySamples) {
  std::mt19937 random(8);
  for (const auto& [ranks, count, longest, steps] :
       {std::tuple(8, 256, 32768, 100), {64, 2048, 32768, 10}, {8, 1024, 32768, 10}, {32, 1024, 16384, 10}}) {
    const StepOptions in_each{
        .ranks = ranks, .cost = SampleCost::parse("flops"), .max_tokens = longest, .wait = Wait::micro};
    const StepOptions at_end{.ranks = ranks, .cost = in_each.cost, .max_tokens = longest};
    StepBalance with, without;
    for (int step = 0; step < steps; ++step) {
      const auto samples = lognormal(random, static_cast<std::size_t>(count), longest);
      const auto plan = plan_step(samples, in_each);
      test::expect_sound(plan, samples, in_each);
      const auto balance = balance_of(plan, samples, test::balance_in(in_each));
      ASSERT_LE(balance.waiting, 1.06 * balance.waiting_bound);
      with += balance;
      without += balance_of(plan_step(samples, at_end), samples, test::balance_in(at_end));
    }
    EXPECT_LE(with.waiting, 1.01 * with.waiting_bound);
    EXPECT_LT(with.waiting, 0.93 * without.waiting);
    EXPECT_LE(with.micro_batches, without.micro_batches);
  }
}

TEST(StepPlan, OrdersTheMicroBatchesOfAllRanksTogetherIfTheyWaitInEach) {
  std::mt19937 random(9);
  const auto samples = lognormal(random, 200, 8192);
  const auto waits = [&](MicroOrder order) {
    const auto plan = plan_step(samples, {.ranks = 4, .max_tokens = 16384, .order = order, .wait = Wait::micro});
    std::vector<std::int64_t> most;
    for (int micro = 0; micro < plan.num_micro; ++micro) {
      auto& each = most.emplace_back(0);
      for (int rank = 0; rank < 4; ++rank) {
        std::int64_t tokens = 0;
        for (const auto item : plan.at(rank, micro)) tokens += samples[item].tokens;
        each = std::max(each, tokens);
      }
    }
    return most;
  };
  const auto as_read = waits(MicroOrder::as_read), long_first = waits(MicroOrder::long_first);
  EXPECT_TRUE(std::ranges::is_sorted(long_first, std::greater()));
  EXPECT_THAT(as_read, testing::UnorderedElementsAreArray(long_first));
  EXPECT_THAT(waits(MicroOrder::paired), testing::UnorderedElementsAreArray(long_first));
}

TEST(StepPlan, RejectsEqualCountsIfRanksWaitInEachMicroBatch) {
  const StepOptions options{.ranks = 2, .sizes = PartSizes::equal, .max_tokens = 9, .wait = Wait::micro};
  EXPECT_THAT(refusal_of(of_tokens({1, 2}), options), HasSubstr("counts must be free"));
}

TEST(StepPlan, IsNearTheLowerBoundInOneDimension) {
  std::mt19937 random(2);
  for (const auto& [ranks, count, rounds] : {std::tuple(8, 256, 200), {64, 4096, 10}}) {
    for (int round = 0; round < rounds; ++round) {
      const StepOptions options{.ranks = ranks, .cost = SampleCost::parse("flops")};
      const auto samples = lognormal(random, static_cast<std::size_t>(count), 32768);
      const auto balance = balance_of(plan_step(samples, options), samples, test::balance_in(options));
      ASSERT_LE(balance.busiest, 1.002 * balance.bound);
    }
  }
}

TEST(StepPlan, BalancesTheWorseOfTwoDimensions) {
  std::mt19937 random(3);
  for (const auto sizes : {PartSizes::any, PartSizes::equal}) {
    for (int round = 0; round < 50; ++round) {
      const StepOptions options{.ranks = 8, .cost = SampleCost::parse("weights"), .sizes = sizes};
      auto samples = lognormal(random, 256, 8192);
      auto swapped = samples;
      for (std::size_t i = 0; i < samples.size(); ++i) {
        // Samples with few tokens have many images, on another scale.
        samples[i].weights = {samples[i].tokens,
                              1'000'000 / samples[i].tokens * static_cast<std::int64_t>(random() % 9)};
        samples[i].weights[1] = std::min<std::int64_t>(samples[i].weights[1], 10'000);
        swapped[i].weights = {samples[i].weights[1], samples[i].weights[0]};
      }
      const auto plan = plan_step(samples, options);
      test::expect_sound(plan, samples, options);
      for (const auto& each : {samples, swapped}) {
        const auto balance = balance_of(plan, each, {.cost = options.cost});
        ASSERT_LE(balance.busiest, 1.01 * balance.bound);
      }
    }
  }
}

TEST(StepPlan, BalancesTheSecondWorkIfThereIsNoFirst) {
  Sizes samples(5);
  for (std::size_t i = 0; i < 5; ++i) samples[i].weights[1] = 8 - static_cast<std::int64_t>(i);
  const auto plan = plan_step(samples, {.ranks = 2, .cost = SampleCost::parse("weights")});
  EXPECT_THAT(plan.micros, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 4)));
}

TEST(StepPlan, PacksAsFewMicroBatchesAsMaxTokensAllows) {
  std::mt19937 random(4);
  for (const auto sizes : {PartSizes::any, PartSizes::equal}) {
    for (const auto& [ranks, count, rounds] : {std::tuple(8, 256, 50), {64, 4096, 2}, {1, 512, 4}}) {
      const StepOptions options{.ranks = ranks, .cost = SampleCost::parse("flops"), .sizes = sizes, .max_tokens = 8192};
      for (int round = 0; round < rounds; ++round) {
        const auto samples = lognormal(random, static_cast<std::size_t>(count), 8192);
        const auto plan = plan_step(samples, options);
        test::expect_sound(plan, samples, options);
        ASSERT_LE(plan.num_micro, fewest_micros(samples, options) + 1);
        const auto balance = balance_of(plan, samples, test::balance_in(options));
        ASSERT_LE(balance.busiest, 1.02 * balance.bound);
      }
    }
  }
}

TEST(StepPlan, AssignsLittleElseToTheRankOfTheLongestSample) {
  Sizes samples(419, of_tokens(1000));
  samples.push_back(of_tokens(32768));
  samples.push_back(of_tokens(16));
  const StepOptions options{.ranks = 8, .cost = SampleCost::parse("flops"), .max_tokens = 32768};
  const auto plan = plan_step(samples, options);
  test::expect_sound(plan, samples, options);
  EXPECT_EQ(plan.num_micro, 2);
  const auto balance = balance_of(plan, samples, test::balance_in(options));
  EXPECT_LE(balance.busiest, 1.001 * balance.bound);
}

TEST(StepPlan, IsNearTheBoundIfAMicroBatchJustHoldsTheLongestSample) {
  std::mt19937 random(6);
  const StepOptions options{.ranks = 8, .cost = SampleCost::parse("flops"), .max_tokens = 32768};
  double sum = 0;
  for (int round = 0; round < 200; ++round) {
    const auto samples = lognormal(random, 256, 32768);
    const auto plan = plan_step(samples, options);
    test::expect_sound(plan, samples, options);
    const auto balance = balance_of(plan, samples, test::balance_in(options));
    sum += balance.busiest / balance.bound;
    ASSERT_LE(balance.busiest, 1.035 * balance.bound);
  }
  EXPECT_LE(sum / 200, 1.002);
}

/// Returns the work of the busiest rank if the longest sample always goes to the least busy rank, in a micro-batch that
/// has room for it. Returns nothing if a sample does not fit.
std::optional<double> greedy(Sizes samples, const StepOptions& options, int num_micro) {
  std::ranges::sort(samples, std::greater(), &SampleSize::tokens);
  std::vector<double> works(static_cast<std::size_t>(options.ranks));
  std::vector<std::vector<std::int64_t>> micros(works.size(),
                                                std::vector<std::int64_t>(static_cast<std::size_t>(num_micro)));
  for (const auto& sample : samples) {
    std::optional<std::size_t> best;
    for (std::size_t rank = 0; rank < works.size(); ++rank) {
      if (*std::ranges::min_element(micros[rank]) + sample.tokens > options.max_tokens) continue;
      if (!best || works[rank] < works[*best]) best = rank;
    }
    if (!best) return {};
    works[*best] += static_cast<double>(options.cost.of(sample).first);
    *std::ranges::min_element(micros[*best]) += sample.tokens;
  }
  return *std::ranges::max_element(works);
}

TEST(StepPlan, IsNoWorseThanAGreedyDivisionForAnyShape) {
  std::mt19937 random(8);
  int compared = 0;
  double ours = 0, greedys = 0;
  for (int round = 0; round < 600; ++round) {
    StepOptions options{.ranks = std::array{2, 4, 8, 16}[random() % 4]};
    options.cost = SampleCost::parse(std::array{"tokens", "flops"}[random() % 2]);
    const auto samples = lognormal(random, static_cast<std::size_t>(options.ranks) * (4 + random() % 40), 32768);
    const auto longest = std::ranges::max(samples, {}, &SampleSize::tokens).tokens;
    options.max_tokens = longest + static_cast<std::int64_t>(random()) % (3 * longest);
    const auto plan = plan_step(samples, options);
    test::expect_sound(plan, samples, options);
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_EQ(plan_step(samples, options), plan);
    const auto balance = balance_of(plan, samples, test::balance_in(options));
    EXPECT_GE(balance.busiest, balance.bound);
    const auto baseline = greedy(samples, options, plan.num_micro);
    if (!baseline) continue;
    ++compared;
    ours += balance.busiest / balance.bound;
    greedys += *baseline / balance.bound;
    // With few samples per rank, a greedy division is sometimes better by chance.
    EXPECT_LE(balance.busiest, 1.005 * *baseline) << options.ranks << " ranks, round " << round;
  }
  EXPECT_GT(compared, 300);
  EXPECT_LT(ours, greedys);
}

TEST(StepPlan, DividesTheWorkAboutEvenlyOverMicroBatches) {
  Sizes samples(64, of_tokens(100));
  const auto plan = plan_step(samples, {.ranks = 4, .max_tokens = 500});
  EXPECT_EQ(plan.num_micro, 4);
  for (const auto& micro : plan.micros) EXPECT_EQ(micro.size(), 4u);
}

TEST(StepPlan, PacksSamplesOfMoreThanHalfAMicroBatchOneByOne) {
  const auto plan = plan_step(Sizes(64, of_tokens(60)), {.ranks = 4, .max_tokens = 100});
  EXPECT_EQ(plan.num_micro, 16);
  for (const auto& micro : plan.micros) EXPECT_EQ(micro.size(), 1u);
}

TEST(StepPlan, PutsEachSampleInItsOwnMicroBatchIfNothingElseFits) {
  // Balanced by work, the last four samples split into one and three, but no two of the three fit into 128
  // micro-batches.
  Sizes samples(254, of_tokens(60));
  for (const std::int64_t weight : {30, 10, 10, 10}) samples.push_back({.tokens = 50, .weights = {weight, 0}});
  const StepOptions options{
      .ranks = 2, .cost = SampleCost::parse("weights"), .sizes = PartSizes::equal, .max_tokens = 100};
  const auto plan = plan_step(samples, options);
  test::expect_sound(plan, samples, options);
  EXPECT_EQ(plan.num_micro, 129);
}

TEST(StepPlan, DividesEveryStepWithEqualCounts) {
  std::mt19937 random(5);
  for (int round = 0; round < 1000; ++round) {
    StepOptions options{
        .ranks = 1 + static_cast<int>(random() % 4), .cost = SampleCost::parse("weights"), .max_tokens = 100};
    Sizes samples(static_cast<std::size_t>(options.ranks) * (1 + random() % 200));
    for (auto& sample : samples) {
      sample = of_tokens(40 + static_cast<std::int64_t>(random() % 61));
      sample.weights = {static_cast<std::int64_t>(random() % 4 == 0 ? random() % 100 : 0), 0};
    }
    for (const auto sizes : {PartSizes::equal, PartSizes::any}) {
      options.sizes = sizes;
      test::expect_sound(plan_step(samples, options), samples, options);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(StepPlan, FillsMicroBatchesToTheLastTokenIfNecessary) {
  // Each micro-batch is one of 70 and one of 30, or 60 and 40: nothing else fits.
  Sizes samples;
  for (int i = 0; i < 6; ++i) {
    for (const auto tokens : {70, 60, 30, 40}) samples.push_back(of_tokens(tokens));
  }
  for (const auto sizes : {PartSizes::any, PartSizes::equal}) {
    const StepOptions options{.ranks = 3, .sizes = sizes, .max_tokens = 100};
    const auto plan = plan_step(samples, options);
    test::expect_sound(plan, samples, options);
    EXPECT_EQ(plan.num_micro, 4);
  }
}

TEST(StepPlan, HasOneMicroBatchIfAllTokensFit) {
  const auto plan = plan_step(of_tokens({8, 7, 6, 5, 4}), {.ranks = 2, .max_tokens = INT64_MAX});
  EXPECT_EQ(plan, plan_step(of_tokens({8, 7, 6, 5, 4}), {.ranks = 2}));
}

TEST(StepPlan, OrdersTheMicroBatchesOfARank) {
  const auto samples = of_tokens({60, 90, 70, 100, 80});
  const auto order_of = [&](MicroOrder order) {
    return plan_step(samples, {.ranks = 1, .max_tokens = 100, .order = order}).micros;
  };
  EXPECT_THAT(order_of(MicroOrder::as_read),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3), ElementsAre(4)));
  EXPECT_THAT(order_of(MicroOrder::long_first),
              ElementsAre(ElementsAre(3), ElementsAre(1), ElementsAre(4), ElementsAre(2), ElementsAre(0)));
  EXPECT_THAT(order_of(MicroOrder::paired),
              ElementsAre(ElementsAre(3), ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(4)));
}

TEST(StepPlan, AssignsFreeSamplesToEveryRank) {
  const auto plan = plan_step(Sizes(6), {.ranks = 4});
  for (const auto& micro : plan.micros) EXPECT_FALSE(micro.empty());
}

TEST(StepPlan, SupportsWorkUpTo62Bits) {
  const std::int64_t quarter = std::int64_t{1} << 60;
  const Sizes samples{{.tokens = quarter}, {.tokens = quarter}, {.tokens = quarter}, {.tokens = quarter - 1}};
  for (const std::int64_t max_tokens : {std::int64_t{0}, quarter, 2 * quarter, INT64_MAX}) {
    const StepOptions options{.ranks = 2, .max_tokens = max_tokens};
    const auto plan = plan_step(samples, options);
    test::expect_sound(plan, samples, options);
    EXPECT_EQ(balance_of(plan, samples, test::balance_in(options)).busiest, 2.0 * static_cast<double>(quarter));
  }
  auto heavy = samples;
  for (auto& sample : heavy) sample = {.tokens = 1, .weights = {sample.tokens, sample.tokens}};
  const StepOptions options{.ranks = 2, .cost = SampleCost::parse("weights"), .max_tokens = 2};
  EXPECT_EQ(balance_of(plan_step(heavy, options), heavy, {.cost = options.cost}).busiest,
            2.0 * static_cast<double>(quarter));
}

TEST(StepPlan, RejectsMoreThan62BitsAndNamesTheSample) {
  const std::int64_t half = std::int64_t{1} << 61;
  const auto weights = SampleCost::parse("weights");
  EXPECT_THAT(refusal_of({{.tokens = half}, {.tokens = half - 1}, {.tokens = 1}}, {}),
              HasSubstr("the work of samples 0 to 2 of the step does not fit in 62 bits; make"));
  EXPECT_THAT(refusal_of({{.weights = {0, half}}, {.weights = {0, half}}}, {.cost = weights}),
              HasSubstr("the work of samples 0 to 1 of the step does not fit in 62 bits; make"));
  EXPECT_THAT(refusal_of({{.tokens = half}, {.tokens = half}}, {.cost = weights}),
              HasSubstr("the number of tokens of samples 0 to 1 of the step"));
  EXPECT_THAT(refusal_of({{.tokens = 1}, {.tokens = 2 * half}}, {}), HasSubstr("sample 1 of the step has 46116860184"));
  EXPECT_THAT(refusal_of({{.tokens = 1}, {.tokens = half}}, {.cost = SampleCost::parse("flops")}),
              HasSubstr("sample 1 of the step: its work does not fit in 62 bits; make"));
}

TEST(StepPlan, RejectsASampleOfNegativeSizeAndNamesIt) {
  EXPECT_THAT(refusal_of(of_tokens({3, -4}), {}), HasSubstr("sample 1 of the step has -4 tokens; a sample must have"));
  EXPECT_THAT(refusal_of({{}, {}, {.weights = {-1, 0}}}, {.cost = SampleCost::parse("weights")}),
              HasSubstr("sample 2 of the step: its work is -1; work must be 0 or more"));
}

TEST(StepPlan, RejectsASampleOfMoreThanMaxTokens) {
  EXPECT_THAT(refusal_of(of_tokens({3, 101, 4}), {.max_tokens = 100}),
              HasSubstr("sample 1 of the step has 101 tokens, but a micro-batch holds at most 100; raise max_tokens or "
                        "cut the sample, or "
                        "see \"Samples longer than a micro-batch\" in docs/balance.md"));
}

TEST(StepPlan, RejectsFewerSamplesThanRanks) {
  EXPECT_THAT(refusal_of(of_tokens({1, 2}), {.ranks = 3}),
              HasSubstr("a step of 2 sample(s) cannot be divided over 3 data-parallel ranks"));
  EXPECT_THAT(refusal_of({}, {}), HasSubstr("a step of 0 sample(s)"));
}

TEST(StepPlan, RejectsTooFewSamplesForEqualNumbersOfMicroBatches) {
  // The first rank would have two micro-batches, and the second one.
  for (const auto sizes : {PartSizes::any, PartSizes::equal}) {
    EXPECT_THAT(refusal_of(of_tokens({100, 100, 100}), {.ranks = 2, .sizes = sizes, .max_tokens = 100}),
                HasSubstr("the 3 samples of the step do not fit into the same number of micro-batches of at most 100 "
                          "tokens on each of 2 ranks"));
  }
}

TEST(StepPlan, RejectsInvalidOptions) {
  EXPECT_THAT(refusal_of(of_tokens({1}), {.ranks = 0}), HasSubstr("ranks must be positive, got 0"));
  EXPECT_THAT(refusal_of(of_tokens({1}), {.max_tokens = -1}), HasSubstr("max_tokens must be 0 or more, got -1"));
}

TEST(StepPlan, NamesItsOrders) {
  for (const auto order : {MicroOrder::as_read, MicroOrder::long_first, MicroOrder::paired}) {
    EXPECT_EQ(parse_micro_order(to_string(order)), order);
  }
  EXPECT_THROW(parse_micro_order("longest"), InvalidArgument);
  for (const auto wait : {Wait::step, Wait::micro}) EXPECT_EQ(parse_wait(to_string(wait)), wait);
  EXPECT_THROW(parse_wait("end"), InvalidArgument);
}

TEST(Balance, DescribesItself) {
  EXPECT_EQ(to_string(Balance{.cost = SampleCost::parse("flops"), .max_tokens = 8192}),
            "flops(linear=24576,quadratic=1), free counts, at most 8192 tokens, as-read");
  EXPECT_EQ(to_string(Balance{.sizes = PartSizes::equal, .order = MicroOrder::paired, .max_delay = 9}),
            "tokens, equal counts, paired, delayed up to 9 steps");
  EXPECT_EQ(to_string(Balance{.cost = SampleCost::parse("weights"), .label = "cost weigh (train.py:12)"}),
            "weights, free counts, as-read, cost weigh (train.py:12)");
}

}  // namespace
}  // namespace levada
