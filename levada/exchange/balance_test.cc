#include "levada/exchange/balance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "levada/base/error.h"

namespace levada {
namespace {

using testing::ElementsAre;

std::vector<std::int64_t> random_tokens(std::mt19937& random, std::size_t count, std::int64_t most) {
  std::vector<std::int64_t> tokens(count);
  for (auto& each : tokens) each = std::uniform_int_distribution<std::int64_t>(0, most)(random);
  return tokens;
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

std::int64_t fullest(const Partition& partition, std::span<const std::int64_t> tokens) {
  return std::ranges::max(tokens_by_part(partition, tokens));
}

/// The best there is, by trying everything.
std::int64_t best(std::span<const std::int64_t> tokens, std::vector<std::int64_t>& loads, std::size_t item) {
  if (item == tokens.size()) return std::ranges::max(loads);
  std::int64_t least = INT64_MAX;
  for (auto& load : loads) {
    load += tokens[item];
    least = std::min(least, best(tokens, loads, item + 1));
    load -= tokens[item];
  }
  return least;
}

TEST(Balance, DividesByTokens) {
  const std::vector<std::int64_t> tokens{8, 7, 6, 5, 4};
  EXPECT_THAT(partition_by_tokens(tokens, 2),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3, 4)));  // 14 and 16; LPT has 17
}

TEST(Balance, KeepsToTheBoundOfLpt) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const std::size_t parts = 2 + random() % 3;
    const auto tokens = random_tokens(random, random() % 9, 30);
    const auto partition = partition_by_tokens(tokens, parts);
    expect_partition(partition, tokens.size(), parts);
    std::vector<std::int64_t> loads(parts, 0);
    const auto least = static_cast<double>(best(tokens, loads, 0));
    EXPECT_LE(static_cast<double>(fullest(partition, tokens)),
              least * (4.0 / 3 - 1.0 / (3.0 * static_cast<double>(parts))) + 1e-9);
  }
}

TEST(Balance, KeepsCountsEqual) {
  std::mt19937 random(8);
  for (int round = 0; round < 100; ++round) {
    const std::size_t parts = 1 + random() % 8;
    const auto tokens = random_tokens(random, parts + random() % 50, 4000);
    const auto partition = partition_by_tokens(tokens, parts, PartSizes::equal);
    expect_partition(partition, tokens.size(), parts);
    const auto [least, most] = std::ranges::minmax(partition, {}, &std::vector<std::size_t>::size);
    EXPECT_LE(most.size() - least.size(), 1u);
  }
}

TEST(Balance, OfManyRaggedSamplesIsWithinAPercent) {
  std::mt19937 random(9);
  const auto tokens = random_tokens(random, 1024, 4096);
  const auto even = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}) / 16;
  EXPECT_LE(fullest(partition_by_tokens(tokens, 16), tokens), even + even / 100);
  EXPECT_LE(fullest(partition_by_tokens(tokens, 16, PartSizes::equal), tokens), even + even / 100);
}

TEST(Balance, CutsRunsInOrderAsWellAsCanBe) {
  std::mt19937 random(10);
  for (int round = 0; round < 200; ++round) {
    const auto tokens = random_tokens(random, 2 + random() % 8, 20);
    const auto partition = partition_in_order(tokens, 2);
    expect_partition(partition, tokens.size(), 2);
    std::int64_t least = INT64_MAX;
    for (auto middle = tokens.begin() + 1; middle != tokens.end(); ++middle) {
      least = std::min(least, std::max(std::accumulate(tokens.begin(), middle, std::int64_t{0}),
                                       std::accumulate(middle, tokens.end(), std::int64_t{0})));
    }
    EXPECT_EQ(fullest(partition, tokens), least);
    EXPECT_LT(partition[0].back(), partition[1].front());
  }
}

TEST(Balance, RefusesWhatCannotBe) {
  const std::vector<std::int64_t> two{1, 2}, negative{1, -2}, huge{INT64_MAX, 1};
  EXPECT_THROW(partition_by_tokens(two, 0), InvalidArgument);
  EXPECT_THROW(partition_by_tokens(negative, 1), InvalidArgument);
  EXPECT_THROW(partition_by_tokens(huge, 1), InvalidArgument);
  EXPECT_THROW(partition_by_tokens(two, 3, PartSizes::equal), InvalidArgument);
  EXPECT_THROW(partition_in_order(two, 3), InvalidArgument);
  EXPECT_THAT(partition_by_tokens(two, 3), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre()));
}

}  // namespace
}  // namespace levada
