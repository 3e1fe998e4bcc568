#include "levada/engine/intervals.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace levada {
namespace {

using List = std::vector<Interval>;

TEST(IntervalSet, JoinsNeighbors) {
  IntervalSet set;
  set.add({10, 20});
  set.add({30, 40});
  set.add({20, 30});
  EXPECT_EQ(set.all(), (List{{10, 40}}));
  EXPECT_EQ(set.total(), 30U);
}

TEST(IntervalSet, FindsMissingAndContainedIntervals) {
  IntervalSet set;
  set.add({10, 20});
  set.add({30, 40});
  EXPECT_EQ(set.missing({5, 35}), (List{{5, 10}, {20, 30}}));
  EXPECT_EQ(set.within({5, 35}), (List{{10, 20}, {30, 35}}));
  EXPECT_TRUE(set.contains({12, 20}));
  EXPECT_FALSE(set.contains({12, 21}));
}

TEST(IntervalSet, FindsTheLowestSufficientInterval) {
  IntervalSet set;
  set.add({0, 4});
  set.add({10, 30});
  set.add({40, 100});
  EXPECT_EQ(set.find(4), 0U);
  EXPECT_EQ(set.find(5), 10U);
  EXPECT_EQ(set.find(60), 40U);
  EXPECT_EQ(set.find(61), std::nullopt);
}

TEST(IntervalSet, MatchesASetOfNumbers) {
  std::mt19937 random(7);
  IntervalSet set;
  std::vector<bool> plain(200);
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t begin = random() % 200;
    const Interval interval{begin, begin + random() % (201 - begin)};
    const bool add = random() % 2 == 0;
    if (add) set.add(interval);
    else set.remove(interval);
    std::fill(plain.begin() + static_cast<long>(interval.begin), plain.begin() + static_cast<long>(interval.end), add);
    const auto count = static_cast<std::uint64_t>(std::count(plain.begin(), plain.end(), true));
    ASSERT_EQ(set.total(), count);
    for (std::uint64_t at = 0; at < 200; ++at) ASSERT_EQ(set.contains({at, at + 1}), plain[at]);
    const List all = set.all();
    for (std::size_t k = 1; k < all.size(); ++k) ASSERT_LT(all[k - 1].end, all[k].begin);
  }
}

}  // namespace
}  // namespace levada
