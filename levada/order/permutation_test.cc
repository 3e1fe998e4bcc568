#include "levada/order/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace levada {
namespace {

std::vector<std::int64_t> order_of(std::int64_t size, std::uint64_t seed, std::uint64_t epoch) {
  const Permutation permutation(size, seed, epoch);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < size; ++i) order.push_back(permutation(i));
  return order;
}

TEST(Permutation, ContainsEachElementOnce) {
  for (std::int64_t size = 1; size <= 1000; ++size) {
    auto order = order_of(size, 3, static_cast<std::uint64_t>(size));
    std::ranges::sort(order);
    for (std::int64_t i = 0; i < size; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i) << "of " << size;
  }
}

TEST(Permutation, StaysInItsRangeForAnySize) {
  std::mt19937_64 random(1);
  for (const std::int64_t size :
       {1L, 2L, 3L, 4L, 5L, 63L, 64L, 65L, 4096L, 1'000'003L, 1L << 31, (1L << 40) + 1, 1L << 62}) {
    const Permutation permutation(size, random(), random());
    for (int i = 0; i < 200; ++i) {
      const auto index = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size));
      const auto element = permutation(index);
      ASSERT_GE(element, 0);
      ASSERT_LT(element, size);
    }
  }
}

TEST(Permutation, DiffersByEpochAndBySeed) {
  const auto order = order_of(100, 7, 0);
  EXPECT_NE(order, order_of(100, 7, 1));
  EXPECT_NE(order, order_of(100, 8, 0));
  EXPECT_NE(order_of(100, 1, 2), order_of(100, 2, 1));
  EXPECT_EQ(order, order_of(100, 7, 0));
}

// Computed by another program from the description only. Must be the same on every platform and in every release.
TEST(Permutation, IsStableAcrossReleases) {
  EXPECT_EQ(order_of(10, 7, 0), (std::vector<std::int64_t>{2, 3, 8, 6, 5, 1, 7, 9, 4, 0}));
  EXPECT_EQ(order_of(10, 7, 1), (std::vector<std::int64_t>{6, 2, 5, 0, 3, 1, 7, 4, 8, 9}));
  const Permutation middle(1'000'003, 0, 0);
  EXPECT_EQ(middle(0), 619805);
  EXPECT_EQ(middle(4), 225402);
  const Permutation large(100'000'000, 7, 2);
  EXPECT_EQ(large(0), 71409373);
  EXPECT_EQ(large(99'999'999), 13345681);
  const Permutation largest(std::int64_t{1} << 62, 12345678901234567890U, 3);
  EXPECT_EQ(largest(0), 4338882474735482891);
  EXPECT_EQ(largest(2), 1062374818908261827);
}

TEST(Permutation, AllOrdersOfFewElementsAreAboutEquallyFrequent) {
  std::map<std::vector<std::int64_t>, int> seen;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) ++seen[order_of(3, seed, 0)];
  EXPECT_EQ(seen.size(), 6);
  for (const auto& [order, times] : seen) EXPECT_NEAR(times, 1000, 150);
}

TEST(Permutation, EveryElementIsAboutEquallyFrequentInEveryPosition) {
  constexpr std::int64_t size = 17;
  std::vector<int> seen(size * size);
  for (std::uint64_t epoch = 0; epoch < 17'000; ++epoch) {
    const auto order = order_of(size, 5, epoch);
    for (std::size_t i = 0; i < size; ++i) ++seen[i * size + static_cast<std::size_t>(order[i])];
  }
  double chi_square = 0;
  for (const int times : seen) chi_square += (times - 1000.0) * (times - 1000.0) / 1000.0;
  // 16 x 16 degrees of freedom: mean 256, standard deviation 22.6.
  EXPECT_LT(chi_square, 256 + 6 * 22.6);
}

}  // namespace
}  // namespace levada
