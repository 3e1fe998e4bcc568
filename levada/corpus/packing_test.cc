#include "levada/corpus/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "levada/corpus/lengths_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;

TEST(Packing, PutsEachItemIntoTheFullestBinThatFits) {
  // 6 and 5 open two bins; 4 fits the first exactly, 3 and 2 the second.
  EXPECT_THAT(pack_best_fit(std::vector<std::int64_t>{2, 3, 4, 5, 6}, 10).bin_of, ElementsAre(1, 1, 0, 1, 0));
  // 3 fits both; the first has less room.
  EXPECT_THAT(pack_best_fit(std::vector<std::int64_t>{7, 6, 3}, 10).bin_of, ElementsAre(0, 1, 0));
  const auto whole = pack_best_fit(std::vector<std::int64_t>{10, 10, 1}, 10);
  EXPECT_THAT(whole.bin_of, ElementsAre(0, 1, 2));
  EXPECT_EQ(whole.bins, 3);
  EXPECT_EQ(pack_best_fit({}, 10).bins, 0);
}

TEST(Packing, LimitsTheItemsPerBin) {
  const std::vector<std::int64_t> sizes = {4, 3, 2, 1, 1, 1};
  EXPECT_THAT(pack_best_fit(sizes, 12).bin_of, ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(pack_best_fit(sizes, 12, 2).bin_of, ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_EQ(pack_best_fit(sizes, 12, 1).bins, 6);
}

/// Computes the same by checking every bin.
std::vector<std::uint32_t> plain_best_fit(const std::vector<std::int64_t>& sizes, std::int64_t capacity) {
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  for (std::size_t i = 0; i < sizes.size(); ++i) order.emplace_back(-sizes[i], i);
  std::ranges::sort(order);
  std::vector<std::int64_t> room;
  std::vector<std::uint32_t> bin_of(sizes.size());
  for (const auto& [negative, thing] : order) {
    std::size_t best = room.size();
    for (std::size_t bin = 0; bin < room.size(); ++bin) {
      if (room[bin] >= -negative && (best == room.size() || room[bin] < room[best])) best = bin;
    }
    if (best == room.size()) room.push_back(capacity);
    room[best] += negative;
    bin_of[thing] = static_cast<std::uint32_t>(best);
  }
  return bin_of;
}

TEST(Packing, MatchesAnExhaustiveSearchOfBins) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    auto sizes = some_lengths(400, seed, 100);
    for (auto& size : sizes) size = std::min<std::int64_t>(size, 100);
    EXPECT_EQ(pack_best_fit(sizes, 100).bin_of, plain_best_fit(sizes, 100));
  }
}

}  // namespace
}  // namespace levada
