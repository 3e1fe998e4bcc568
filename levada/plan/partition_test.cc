#include "levada/plan/partition.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "levada/base/error.h"

namespace levada {
namespace {

using testing::ElementsAre;

std::vector<std::int64_t> random_costs(std::mt19937& random, std::size_t count, std::int64_t most) {
  std::vector<std::int64_t> costs(count);
  for (auto& each : costs) each = std::uniform_int_distribution<std::int64_t>(0, most)(random);
  return costs;
}

void expect_partition(const Partition& partition, std::size_t items, std::size_t parts) {
  EXPECT_EQ(partition.size(), parts);
  std::vector<std::size_t> all;
  for (const auto& part : partition) {
    EXPECT_TRUE(std::ranges::is_sorted(part));
    all.insert(all.end(), part.begin(), part.end());
  }
  std::ranges::sort(all);
  std::vector<std::size_t> expected(items);
  std::iota(expected.begin(), expected.end(), std::size_t{0});
  EXPECT_EQ(all, expected);
}

std::int64_t fullest(const Partition& partition, std::span<const std::int64_t> costs) {
  return std::ranges::max(costs_by_part(partition, costs));
}

/// Returns the lowest possible cost of the costliest part, by trying everything.
std::int64_t best(std::span<const std::int64_t> costs, std::vector<std::int64_t>& loads, std::size_t item) {
  if (item == costs.size()) return std::ranges::max(loads);
  std::int64_t least = INT64_MAX;
  for (auto& load : loads) {
    load += costs[item];
    least = std::min(least, best(costs, loads, item + 1));
    load -= costs[item];
  }
  return least;
}

TEST(Partition, DividesByCost) {
  const std::vector<std::int64_t> costs{8, 7, 6, 5, 4};
  EXPECT_THAT(partition_by_cost(costs, 2),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 4)));  // 15 each; the greedy division has 17
}

TEST(Partition, StaysWithinTheLptBound) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const std::size_t parts = 2 + random() % 3;
    const auto costs = random_costs(random, random() % 9, 30);
    const auto partition = partition_by_cost(costs, parts);
    expect_partition(partition, costs.size(), parts);
    std::vector<std::int64_t> loads(parts, 0);
    const auto least = static_cast<double>(best(costs, loads, 0));
    EXPECT_LE(static_cast<double>(fullest(partition, costs)),
              least * (4.0 / 3 - 1.0 / (3.0 * static_cast<double>(parts))) + 1e-9);
  }
}

TEST(Partition, KeepsCountsEqual) {
  std::mt19937 random(8);
  for (int round = 0; round < 100; ++round) {
    const std::size_t parts = 1 + random() % 8;
    const auto costs = random_costs(random, parts + random() % 50, 4000);
    const auto partition = partition_by_cost(costs, parts, PartSizes::equal);
    expect_partition(partition, costs.size(), parts);
    const auto [least, most] = std::ranges::minmax(partition, {}, &std::vector<std::size_t>::size);
    EXPECT_LE(most.size() - least.size(), 1u);
  }
}

TEST(Partition, IsWithinAPercentForManyRaggedSamples) {
  std::mt19937 random(9);
  const auto costs = random_costs(random, 1024, 4096);
  const auto even = std::accumulate(costs.begin(), costs.end(), std::int64_t{0}) / 16;
  EXPECT_LE(fullest(partition_by_cost(costs, 16), costs), even + even / 100);
  EXPECT_LE(fullest(partition_by_cost(costs, 16, PartSizes::equal), costs), even + even / 100);
}

/// Returns attention costs of sequences with realistic document lengths.
std::vector<std::int64_t> ragged_costs(std::mt19937& random, std::size_t count) {
  std::lognormal_distribution<double> lengths(std::log(1500.0) - 0.72, 1.2);
  std::vector<std::int64_t> costs(count);
  for (auto& cost : costs) {
    const auto length = static_cast<std::int64_t>(std::clamp(lengths(random), 1.0, 32768.0));
    cost = 24576 * length + length * length;
  }
  return costs;
}

/// Returns a lower bound for the cost of the costliest part.
double lower_bound(std::vector<std::int64_t> costs, std::size_t parts, PartSizes sizes) {
  std::ranges::sort(costs);
  auto bound = std::max(
      static_cast<double>(costs.back()),
      static_cast<double>(std::accumulate(costs.begin(), costs.end(), std::int64_t{0})) / static_cast<double>(parts));
  if (sizes == PartSizes::any) return bound;
  // Each of the k costliest shares its part with that many others, at best the cheapest.
  const auto others = costs.size() / parts - 1;
  std::int64_t sum = 0;
  for (std::size_t k = 1; k <= parts; ++k) {
    sum += costs[costs.size() - k];
    for (std::size_t i = (k - 1) * others; i < k * others; ++i) sum += costs[i];
    bound = std::max(bound, static_cast<double>(sum) / static_cast<double>(k));
  }
  return bound;
}

TEST(Partition, IsNearTheLowerBoundForRaggedSequences) {
  std::mt19937 random(3);
  for (const auto& [parts, count, rounds] : {std::tuple(8, 256, 300), {64, 4096, 20}, {512, 4096, 20}}) {
    for (const auto sizes : {PartSizes::any, PartSizes::equal}) {
      for (int round = 0; round < rounds; ++round) {
        const auto costs = ragged_costs(random, static_cast<std::size_t>(count));
        const auto partition = partition_by_cost(costs, static_cast<std::size_t>(parts), sizes);
        const auto bound = lower_bound(costs, static_cast<std::size_t>(parts), sizes);
        ASSERT_LE(static_cast<double>(fullest(partition, costs)), (sizes == PartSizes::any ? 1.002 : 1.015) * bound)
            << parts << " of " << count;
      }
    }
  }
}

TEST(Partition, LeavesNoPartEmptyIfItemsCostNothing) {
  for (const auto sizes : {PartSizes::any, PartSizes::equal}) {
    for (const auto& part : partition_by_cost(std::vector<std::int64_t>(6, 0), 4, sizes)) EXPECT_FALSE(part.empty());
  }
}

TEST(Partition, BalancesTheLargerOfTwoSums) {
  // With only one of the sums, both 9s or both 7s could end up together.
  const std::vector<Demand> demands{{{9, 1}}, {{1, 9}}, {{7, 2}}, {{2, 7}}, {{9, 1}}, {{1, 9}}, {{7, 2}}, {{2, 7}}};
  const auto partition = partition_within(demands, 2, 0);
  ASSERT_TRUE(partition);
  for (const auto& part : *partition) {
    Work sum;
    for (const std::size_t item : part) {
      sum.first += demands[item].work.first;
      sum.second += demands[item].work.second;
    }
    EXPECT_EQ(sum, (Work{19, 19}));
  }
}

TEST(Partition, RespectsTheTokenLimit) {
  std::mt19937 random(11);
  int found = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<Demand> demands(10 + random() % 30);
    std::int64_t tokens = 0;
    for (auto& demand : demands) {
      demand = {{static_cast<std::int64_t>(random() % 100), static_cast<std::int64_t>(random() % 100)},
                static_cast<std::int64_t>(1 + random() % 50)};
      tokens += demand.tokens;
    }
    const std::size_t parts = 1 + random() % 6;
    const std::int64_t most = tokens / static_cast<std::int64_t>(parts) + static_cast<std::int64_t>(random() % 10);
    const auto partition = partition_within(demands, parts, most);
    if (!partition) continue;
    ++found;
    expect_partition(*partition, demands.size(), parts);
    for (const auto& part : *partition) {
      EXPECT_FALSE(part.empty());
      std::int64_t sum = 0;
      for (const std::size_t item : part) sum += demands[item].tokens;
      EXPECT_LE(sum, most);
    }
  }
  EXPECT_GT(found, 400);
}

TEST(Partition, ReturnsNothingIfTheTokensDoNotFit) {
  const std::vector<Demand> three{{{1, 1}, 60}, {{1, 1}, 60}, {{1, 1}, 60}};
  EXPECT_FALSE(partition_within(three, 2, 119));
  EXPECT_TRUE(partition_within(three, 2, 120));
  EXPECT_FALSE(partition_within(three, 4, 120));
}

TEST(Partition, LeavesEachPartItsMinimumOfItems) {
  std::vector<Demand> demands{{{100, 0}, 100}};
  for (int i = 0; i < 8; ++i) demands.push_back({{1, 0}, 1});
  const auto partition = partition_within(demands, 3, 200, PartSizes::any, 3);
  ASSERT_TRUE(partition);
  for (const auto& part : *partition) EXPECT_EQ(part.size(), 3u);
  EXPECT_FALSE(partition_within(demands, 3, 200, PartSizes::any, 4));
}

TEST(Partition, LeavesEachPartItsMinimumOfFreeItems) {
  const auto partition = partition_within(std::vector<Demand>(13), 4, 0, PartSizes::any, 3);
  ASSERT_TRUE(partition);
  for (const auto& part : *partition) EXPECT_GE(part.size(), 3u);
}

std::int64_t fullest(const Partition& partition, std::span<const Demand> demands) {
  std::int64_t most = 0;
  for (const auto& part : partition) {
    std::int64_t sum = 0;
    for (const std::size_t item : part) sum += demands[item].work.first;
    most = std::max(most, sum);
  }
  return most;
}

TEST(Partition, FullPartsExchangeOneItemForSeveral) {
  std::mt19937 random(12);
  int better = 0, worse = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<Demand> demands(60);
    std::int64_t tokens = 0;
    for (auto& demand : demands) {
      demand.tokens = 1 + static_cast<std::int64_t>(random() % (random() % 4 == 0 ? 100 : 10));
      demand.work.first = demand.tokens * demand.tokens;
      tokens += demand.tokens;
    }
    const auto room = std::max<std::int64_t>(tokens / 4 + 2, 100);
    const auto quick = partition_within(demands, 4, room);
    const auto thorough = partition_within(demands, 4, room, PartSizes::any, 1, Search::thorough);
    if (!quick || !thorough) continue;
    better += fullest(*thorough, demands) < fullest(*quick, demands) ? 1 : 0;
    worse += fullest(*thorough, demands) > fullest(*quick, demands) ? 1 : 0;
  }
  EXPECT_GT(better, 100);
  EXPECT_LT(worse, 5);
}

TEST(Partition, CutsOrderedRunsOptimally) {
  std::mt19937 random(10);
  for (int round = 0; round < 200; ++round) {
    const auto costs = random_costs(random, 2 + random() % 8, 20);
    const auto partition = partition_in_order(costs, 2);
    expect_partition(partition, costs.size(), 2);
    std::int64_t least = INT64_MAX;
    for (auto middle = costs.begin() + 1; middle != costs.end(); ++middle) {
      least = std::min(least, std::max(std::accumulate(costs.begin(), middle, std::int64_t{0}),
                                       std::accumulate(middle, costs.end(), std::int64_t{0})));
    }
    EXPECT_EQ(fullest(partition, costs), least);
    EXPECT_LT(partition[0].back(), partition[1].front());
  }
}

TEST(Partition, RejectsImpossibleDivisions) {
  const std::vector<std::int64_t> two{1, 2}, negative{1, -2}, huge{INT64_MAX, 1};
  EXPECT_THROW(partition_by_cost(two, 0), InvalidArgument);
  EXPECT_THROW(partition_by_cost(negative, 1), InvalidArgument);
  EXPECT_THROW(partition_by_cost(huge, 1), InvalidArgument);
  EXPECT_THROW(partition_by_cost(two, 3, PartSizes::equal), InvalidArgument);
  EXPECT_THROW(partition_in_order(two, 3), InvalidArgument);
  EXPECT_THAT(partition_by_cost(two, 3), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre()));
}

}  // namespace
}  // namespace levada
