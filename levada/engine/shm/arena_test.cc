#include "levada/engine/shm/arena.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace levada::shm {
namespace {

constexpr std::uint64_t page = 4096;

TEST(Arena, TheBlockGivenBackLastIsUsedFirst) {
  Arena arena(1000 * page, 100);
  const auto a = arena.take(5 * page)->slot;
  const auto b = arena.take(5 * page)->slot;
  arena.give_back(a);
  arena.give_back(b);
  EXPECT_EQ(arena.take(5 * page)->slot, b);
  EXPECT_EQ(arena.take(5 * page)->slot, a);
}

TEST(Arena, MemoryUsedBeforeIsNotFreshAgain) {
  Arena arena(1000 * page, 100);
  const auto first = *arena.take(3 * page - 1);
  ASSERT_EQ(first.fresh.size(), 1U);
  EXPECT_EQ(first.fresh[0].size(), 3 * page);
  arena.give_back(first.slot);
  EXPECT_TRUE(arena.take(3 * page)->fresh.empty());
}

TEST(Arena, CountsWhatIsTaken) {
  Arena arena(1000 * page, 100);
  const auto a = arena.take(3 * page - 1)->slot;
  const auto b = arena.take(1)->slot;
  EXPECT_EQ(arena.taken(), 4 * page);
  arena.give_back(a);
  EXPECT_EQ(arena.taken(), page);
  arena.give_back(b);
  EXPECT_EQ(arena.taken(), 0U);
}

TEST(Arena, PoolsSmallBlocksIntoALargeOneBeforeItTouchesMore) {
  Arena arena(1000 * page, 100);
  std::vector<std::uint32_t> slots;
  for (int i = 0; i < 16; ++i) slots.push_back(arena.take(page)->slot);
  for (const auto slot : slots) arena.give_back(slot);
  EXPECT_TRUE(arena.take(16 * page)->fresh.empty());
  EXPECT_EQ(arena.touched(), 16 * page);
}

TEST(Arena, GivesTheWholeOfItAndThenNothing) {
  Arena arena(64 * page, 100);
  const auto all = arena.take(64 * page);
  ASSERT_TRUE(all);
  EXPECT_FALSE(arena.take(1));
  EXPECT_FALSE(arena.fresh_bytes(1));
  arena.give_back(all->slot);
  EXPECT_TRUE(arena.take(64 * page));
}

TEST(Arena, WhereMemoryIsShortABlockTakesNoMoreThanItsSize) {
  Arena arena(64 * page, 100);
  EXPECT_TRUE(arena.take(61 * page));
  EXPECT_TRUE(arena.take(3 * page));
  EXPECT_FALSE(arena.take(1));
}

TEST(Arena, GivesNoMoreBlocksThanItHasSlots) {
  Arena arena(1000 * page, 2);
  const auto a = arena.take(1)->slot;
  ASSERT_TRUE(arena.take(page * 9));
  EXPECT_FALSE(arena.take(1));
  arena.give_back(a);
  EXPECT_TRUE(arena.take(page * 100));
}

TEST(Arena, TrimNamesExactlyTheFreeMemoryThatWasTouched) {
  Arena arena(1000 * page, 100);
  const auto kept = arena.take(4 * page)->slot;
  const auto given = arena.take(6 * page)->slot;
  arena.give_back(given);
  std::uint64_t bytes = 0;
  for (const Range range : arena.trim()) bytes += range.size();
  EXPECT_EQ(bytes, 6 * page);
  EXPECT_EQ(arena.touched(), 4 * page);
  EXPECT_EQ(arena.take(6 * page)->fresh.size(), 1U);
  EXPECT_EQ(arena.block(kept).size, 4 * page);
}

TEST(Arena, FindsABlockOnlyWhileItIsTaken) {
  Arena arena(100 * page, 100);
  const auto taken = *arena.take(page);
  EXPECT_EQ(arena.find(taken.block.offset), taken.slot);
  EXPECT_EQ(arena.find(taken.block.offset + 1), std::nullopt);
  arena.give_back(taken.slot);
  EXPECT_EQ(arena.find(taken.block.offset), std::nullopt);
}

TEST(Arena, BlocksNeverOverlapWhateverTheOrder) {
  std::mt19937 random(11);
  Arena arena(4096 * page, 500);
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>> taken;  // begin -> end, slot
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0 && !taken.empty()) {
      const auto at = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
      arena.give_back(at->second.second);
      taken.erase(at);
      continue;
    }
    const std::uint64_t bytes = 1 + random() % ((random() % 8 == 0 ? 600 : 20) * page);
    const auto block = arena.take(bytes);
    if (!block) continue;
    const std::uint64_t end = block->block.offset + block->block.size;
    ASSERT_GE(block->block.size, bytes);
    ASSERT_LE(end, arena.capacity());
    const auto next = taken.lower_bound(block->block.offset);
    ASSERT_TRUE(next == taken.end() || end <= next->first);
    ASSERT_TRUE(next == taken.begin() || std::prev(next)->second.first <= block->block.offset);
    taken[block->block.offset] = {end, block->slot};
  }
  EXPECT_LE(arena.touched(), arena.capacity());
}

}  // namespace
}  // namespace levada::shm
