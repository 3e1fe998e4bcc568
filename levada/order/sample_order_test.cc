#include "levada/order/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "levada/base/error.h"

namespace levada {
namespace {

std::vector<std::int64_t> epoch_of(SampleOrder& order, std::int64_t epoch) {
  std::vector<std::int64_t> items;
  for (std::int64_t p = 0; p < order.draws(); ++p) items.push_back(order.at(epoch, p));
  return items;
}

TEST(SampleOrder, ShufflesAnEpochWithItsOwnPermutation) {
  SampleOrder order({{"", 10}}, {.seed = 7, .shuffles = true});
  EXPECT_EQ(epoch_of(order, 0), (std::vector<std::int64_t>{2, 3, 8, 6, 5, 1, 7, 9, 4, 0}));
  EXPECT_EQ(epoch_of(order, 1), (std::vector<std::int64_t>{6, 2, 5, 0, 3, 1, 7, 4, 8, 9}));
}

TEST(SampleOrder, DrawsEachItemOncePerRoundForAnyEpochSize) {
  std::mt19937 random(3);
  for (int run = 0; run < 200; ++run) {
    const std::int64_t items = 1 + random() % 50;
    SampleOrder order(
        {{"a", items / 2}, {"b", items - items / 2}},
        {.seed = random(), .shuffles = run % 2 == 0, .draws = static_cast<std::int64_t>(1 + random() % 120)});
    std::vector<std::int64_t> drawn;
    for (std::int64_t epoch = 0; static_cast<std::int64_t>(drawn.size()) < 3 * items; ++epoch) {
      for (const auto item : epoch_of(order, epoch)) drawn.push_back(item);
    }
    for (std::int64_t round = 0; round < 3; ++round) {
      std::vector<std::int64_t> sorted(drawn.begin() + round * items, drawn.begin() + (round + 1) * items);
      std::ranges::sort(sorted);
      for (std::int64_t i = 0; i < items; ++i) ASSERT_EQ(sorted[static_cast<std::size_t>(i)], i);
    }
  }
}

TEST(SampleOrder, MixesInProportionToShares) {
  SampleOrder order({{"a", 10, 3}, {"b", 1000, 1}}, {.seed = 5, .shuffles = true, .mixes = true, .draws = 4096});
  std::int64_t of_a = 0;
  for (const auto item : epoch_of(order, 0)) of_a += item < 10;
  EXPECT_NEAR(static_cast<double>(of_a), 3072, 2);
}

TEST(SampleOrder, DrawsItemsInProportionToWeights) {
  std::mt19937 random(4);
  for (int run = 0; run < 20; ++run) {
    std::vector<double> weights(1 + random() % 20);
    for (auto& weight : weights) weight = random() % 3 == 0 ? 0 : static_cast<double>(random() % 1000);
    weights[random() % weights.size()] = 500;
    double sum = 0;
    for (const auto weight : weights) sum += weight;
    const std::int64_t draws = 20'000;
    SampleOrder order({{"", static_cast<std::int64_t>(weights.size())}},
                      {.seed = random(), .weights = weights, .draws = draws});
    std::vector<double> times(weights.size());
    for (const auto item : epoch_of(order, 1)) ++times[static_cast<std::size_t>(item)];
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double expected = static_cast<double>(draws) * weights[i] / sum;
      EXPECT_NEAR(times[i], expected, 6 * std::sqrt(expected)) << "item " << i << " of " << weights.size();
    }
  }
}

TEST(SampleOrder, RejectsDataThatCannotBeDrawn) {
  EXPECT_THROW(SampleOrder({{"", 0}}, {}), InvalidArgument);
  EXPECT_THROW(SampleOrder({}, {}), InvalidArgument);
  EXPECT_THROW(SampleOrder({{"", 2}}, {.weights = {1}}), InvalidArgument);
  EXPECT_THROW(SampleOrder({{"", 2}}, {.weights = {0, 0}}), InvalidArgument);
  EXPECT_THROW(SampleOrder({{"", 2}}, {.weights = {1, -1}}), InvalidArgument);
  EXPECT_THROW(SampleOrder({{"", 2}}, {.weights = {1, std::nan("")}}), InvalidArgument);
  EXPECT_THROW(SampleOrder({{"a", 2, 0}, {"b", 2}}, {.mixes = true}), InvalidArgument);
  EXPECT_THROW(SampleOrder({{"a", 0}, {"b", 2}}, {.mixes = true}), InvalidArgument);
  SampleOrder order({{"", 4}}, {});
  EXPECT_THROW(order.at(std::int64_t{1} << 61, 0), InvalidArgument);
  EXPECT_THROW(order.at(-1, 0), InvalidArgument);
}

// Item seeds must stay the same from release to release.
TEST(ItemSeed, IsStableAcrossReleases) {
  EXPECT_EQ(item_seed(7, 0, 0), derived_seed(derived_seed(7, 0), 0));
  EXPECT_NE(item_seed(7, 1, 0), item_seed(7, 0, 1));
}

}  // namespace
}  // namespace levada
