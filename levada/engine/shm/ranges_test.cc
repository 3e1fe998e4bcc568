#include "levada/engine/shm/ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace levada::shm {
namespace {

using List = std::vector<Range>;

TEST(Ranges, NeighboursBecomeOne) {
  Ranges ranges;
  ranges.add({10, 20});
  ranges.add({30, 40});
  ranges.add({20, 30});
  EXPECT_EQ(ranges.all(), (List{{10, 40}}));
  EXPECT_EQ(ranges.total(), 30U);
}

TEST(Ranges, SayWhatIsMissingAndWhatIsWithin) {
  Ranges ranges;
  ranges.add({10, 20});
  ranges.add({30, 40});
  EXPECT_EQ(ranges.missing({5, 35}), (List{{5, 10}, {20, 30}}));
  EXPECT_EQ(ranges.within({5, 35}), (List{{10, 20}, {30, 35}}));
  EXPECT_TRUE(ranges.contains({12, 20}));
  EXPECT_FALSE(ranges.contains({12, 21}));
}

TEST(Ranges, FindTheLowestPlaceThatIsLargeEnough) {
  Ranges ranges;
  ranges.add({0, 4});
  ranges.add({10, 30});
  ranges.add({40, 100});
  EXPECT_EQ(ranges.find(4), 0U);
  EXPECT_EQ(ranges.find(5), 10U);
  EXPECT_EQ(ranges.find(60), 40U);
  EXPECT_EQ(ranges.find(61), std::nullopt);
}

TEST(Ranges, AgreeWithASetOfNumbers) {
  std::mt19937 random(7);
  Ranges ranges;
  std::vector<bool> plain(200);
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t begin = random() % 200;
    const Range range{begin, begin + random() % (201 - begin)};
    const bool add = random() % 2 == 0;
    if (add) ranges.add(range);
    else ranges.remove(range);
    std::fill(plain.begin() + static_cast<long>(range.begin), plain.begin() + static_cast<long>(range.end), add);
    const auto count = static_cast<std::uint64_t>(std::count(plain.begin(), plain.end(), true));
    ASSERT_EQ(ranges.total(), count);
    for (std::uint64_t at = 0; at < 200; ++at) ASSERT_EQ(ranges.contains({at, at + 1}), plain[at]);
    const List all = ranges.all();
    for (std::size_t k = 1; k < all.size(); ++k) ASSERT_LT(all[k - 1].end, all[k].begin);
  }
}

}  // namespace
}  // namespace levada::shm
