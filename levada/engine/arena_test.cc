#include "levada/engine/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "levada/engine/sizes_testing.h"

namespace levada {
namespace {

std::optional<Arena::Allocation> allocate(Arena& arena, std::uint64_t bytes) {
  const auto place = arena.find_place(bytes);
  if (!place) return std::nullopt;
  return arena.allocate(*place);
}

TEST(Arena, ReusesTheMostRecentlyFreedBlockFirst) {
  Arena arena(1000 * page, 100);
  const auto a = allocate(arena, 5 * page)->slot;
  const auto b = allocate(arena, 5 * page)->slot;
  arena.free(a);
  arena.free(b);
  EXPECT_EQ(allocate(arena, 5 * page)->slot, b);
  EXPECT_EQ(allocate(arena, 5 * page)->slot, a);
}

TEST(Arena, FreedMemoryStaysResident) {
  Arena arena(1000 * page, 100);
  const auto first = *allocate(arena, 3 * page - 1);
  EXPECT_THAT(first.unbacked, testing::ElementsAre(first.block));
  EXPECT_EQ(first.block.size(), 3 * page);
  arena.free(first.slot);
  EXPECT_EQ(arena.find_place(3 * page)->unbacked, 0U);
  EXPECT_TRUE(allocate(arena, 3 * page)->unbacked.empty());
}

TEST(Arena, CountsUsedMemory) {
  Arena arena(1000 * page, 100);
  const auto a = allocate(arena, 3 * page - 1)->slot;
  const auto b = allocate(arena, 1)->slot;
  EXPECT_EQ(arena.used(), 4 * page);
  arena.free(a);
  EXPECT_EQ(arena.used(), page);
  arena.free(b);
  EXPECT_EQ(arena.used(), 0U);
  EXPECT_EQ(arena.max_used(), 4 * page);
}

TEST(Arena, SizesOfAClassShareTheirBlocks) {
  Arena arena(10'000 * page, 100);
  const auto large = *allocate(arena, 1000 * page);
  arena.free(large.slot);
  const auto small = *allocate(arena, 980 * page);
  EXPECT_EQ(small.slot, large.slot);
  EXPECT_EQ(small.block, large.block) << "the whole block is resident, so it is reused as a whole";
}

TEST(Arena, CoalescesSmallBlocksBeforeUsingMoreMemory) {
  Arena arena(1000 * page, 100);
  std::vector<std::uint32_t> slots;
  for (int i = 0; i < 16; ++i) slots.push_back(allocate(arena, page)->slot);
  for (const auto slot : slots) arena.free(slot);
  EXPECT_TRUE(allocate(arena, 16 * page)->unbacked.empty());
  EXPECT_EQ(arena.resident(), 16 * page);
}

TEST(Arena, SplitsALargeBlockBeforeUsingMoreMemory) {
  Arena arena(1000 * page, 100);
  arena.free(allocate(arena, 16 * page)->slot);
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(allocate(arena, page)->unbacked.empty()) << i;
}

TEST(Arena, AllocatesItsWholeCapacityInOneBlock) {
  Arena arena(64 * page, 100);
  const auto all = allocate(arena, 64 * page);
  ASSERT_TRUE(all);
  EXPECT_FALSE(arena.find_place(1));
  arena.free(all->slot);
  EXPECT_TRUE(allocate(arena, 64 * page));
}

TEST(Arena, RejectsMoreThanItsCapacity) {
  Arena arena(64 * page, 100);
  EXPECT_FALSE(arena.find_place(64 * page + 1));
  EXPECT_FALSE(arena.find_place(std::numeric_limits<std::uint64_t>::max()));
}

TEST(Arena, ReservesOnlyTheSizeOfABlockIfMemoryIsShort) {
  Arena arena(64 * page, 100);
  EXPECT_TRUE(allocate(arena, 61 * page));
  EXPECT_TRUE(allocate(arena, 3 * page));
  EXPECT_FALSE(arena.find_place(1));
}

TEST(Arena, AllocatesNoMoreBlocksThanItHasSlots) {
  Arena arena(1000 * page, 2);
  const auto a = allocate(arena, 1)->slot;
  ASSERT_TRUE(allocate(arena, page * 9));
  EXPECT_FALSE(arena.find_place(1));
  arena.free(a);
  EXPECT_TRUE(allocate(arena, page * 100));
}

TEST(Arena, EvictsOnlyFreeResidentMemory) {
  Arena arena(1000 * page, 100);
  const auto kept = allocate(arena, 4 * page)->slot;
  arena.free(allocate(arena, 6 * page)->slot);
  const auto evicted = arena.evict_all();
  EXPECT_EQ(total_size(evicted), 6 * page);
  EXPECT_EQ(arena.resident(), 4 * page);
  for (const Interval interval : evicted) arena.put_back(interval, false);
  EXPECT_EQ(arena.find_place(6 * page)->unbacked, 6 * page);
  EXPECT_EQ(arena.block(kept).size(), 4 * page);
}

TEST(Arena, DoesNotAllocateMemoryThatIsBeingEvicted) {
  Arena arena(10 * page, 100);
  arena.free(allocate(arena, 10 * page)->slot);
  const auto evicted = arena.evict_all();
  EXPECT_FALSE(arena.find_place(page));
  for (const Interval interval : evicted) arena.put_back(interval, true);
  EXPECT_EQ(arena.find_place(10 * page)->unbacked, 0U) << "the system refused to discard it";
}

TEST(Arena, AnUnpopulatedBlockIsFreeAndNotResident) {
  Arena arena(10 * page, 100);
  arena.free_unpopulated(*allocate(arena, 10 * page));
  EXPECT_EQ(arena.used(), 0U);
  EXPECT_EQ(arena.resident(), 0U);
  EXPECT_EQ(arena.find_place(10 * page)->unbacked, 10 * page);
}

TEST(Arena, FindsABlockByItsOffsetOnlyWhileInUse) {
  Arena arena(100 * page, 100);
  const auto allocated = *allocate(arena, page);
  EXPECT_EQ(arena.slot_at(allocated.block.begin), allocated.slot);
  EXPECT_EQ(arena.slot_at(allocated.block.begin + 1), std::nullopt);
  arena.free(allocated.slot);
  EXPECT_EQ(arena.slot_at(allocated.block.begin), std::nullopt);
}

TEST(Arena, ReusesMemoryOfOtherSizesToStayWithinThePeak) {
  Arena arena(1024 * mib, 100);
  for (std::uint64_t pages = 1; pages < 20'000; pages += pages / 10 + 1) {
    arena.free(allocate(arena, pages * page)->slot);
    for (const Interval interval : arena.evict_excess()) arena.put_back(interval, false);
    ASSERT_LE(arena.resident(), pages * page) << pages;
  }
}

/// The cost of a stream of messages of many sizes, `under_way` of which are not freed yet.
struct Stream {
  std::uint64_t allocated = 0;  ///< bytes of messages in the second half
  std::uint64_t populated = 0;  ///< bytes populated in the second half
  std::uint64_t max_asked = 0;  ///< maximum of bytes requested and not freed yet
  std::uint64_t max_resident = 0;
};

Stream ragged_stream(int messages, std::size_t under_way, std::uint64_t max_bytes) {
  std::mt19937_64 random(5);
  Arena arena(std::uint64_t{1} << 36, 1000);
  std::deque<std::pair<std::uint32_t, std::uint64_t>> blocks;  // slot, bytes requested
  std::uint64_t asked = 0;
  Stream stream;
  for (int i = 0; i < messages; ++i) {
    if (blocks.size() == under_way) {
      arena.free(blocks.front().first);
      asked -= blocks.front().second;
      blocks.pop_front();
    }
    const std::uint64_t bytes = 1 + random() % max_bytes;
    const auto place = *arena.find_place(bytes);
    const auto allocation = arena.allocate(place);
    for (const Interval interval : arena.evict_excess()) arena.put_back(interval, false);
    blocks.emplace_back(allocation.slot, bytes);
    asked += bytes;
    if (i >= messages / 2) {
      stream.allocated += bytes;
      stream.populated += place.unbacked;
    }
    stream.max_asked = std::max(stream.max_asked, asked);
    stream.max_resident = std::max(stream.max_resident, arena.resident());
  }
  return stream;
}

TEST(Arena, KeepsLittleMoreThanThePeakOfRaggedSizes) {
  const Stream stream = ragged_stream(4000, 12, 256 * mib);
  EXPECT_LE(static_cast<double>(stream.max_resident), 1.3 * static_cast<double>(stream.max_asked));
}

TEST(Arena, SeldomPopulatesMemoryForRaggedSizes) {
  const Stream stream = ragged_stream(4000, 12, 256 * mib);
  EXPECT_LE(static_cast<double>(stream.populated), 0.02 * static_cast<double>(stream.allocated));
}

TEST(Arena, BlocksNeverOverlapWhateverTheOrder) {
  std::mt19937 random(11);
  Arena arena(4096 * page, 500);
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>> used;  // begin -> end, slot
  IntervalSet populated;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 200 == 0) {
      for (const Interval evicted : arena.evict_all()) {
        populated.remove(evicted);
        arena.put_back(evicted, false);
      }
    }
    if (random() % 2 == 0 && !used.empty()) {
      const auto at = std::next(used.begin(), static_cast<long>(random() % used.size()));
      arena.free(at->second.second);
      used.erase(at);
      continue;
    }
    const std::uint64_t bytes = 1 + random() % ((random() % 8 == 0 ? 600 : 20) * page);
    const auto allocation = allocate(arena, bytes);
    if (!allocation) continue;
    const auto [begin, end] = allocation->block;
    ASSERT_GE(end - begin, bytes);
    ASSERT_LE(end, arena.capacity());
    const auto next = used.lower_bound(begin);
    ASSERT_TRUE(next == used.end() || end <= next->first);
    ASSERT_TRUE(next == used.begin() || std::prev(next)->second.first <= begin);
    used[begin] = {end, allocation->slot};
    for (const Interval part : allocation->unbacked) populated.add(part);
    ASSERT_TRUE(populated.contains(allocation->block)) << "a block contains unpopulated memory";
    for (const Interval evicted : arena.evict_excess()) {
      ASSERT_EQ(evicted.begin % page + evicted.end % page, 0U) << "only whole pages can be discarded";
      populated.remove(evicted);
      arena.put_back(evicted, false);
    }
    ASSERT_EQ(arena.resident(), populated.total());
    ASSERT_LE(arena.resident(), arena.max_resident());
  }
}

}  // namespace
}  // namespace levada
