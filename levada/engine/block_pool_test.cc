#include "levada/engine/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/error.h"

namespace levada {
namespace {

constexpr std::size_t page = 4096;

std::shared_ptr<BlockPool> pool_of(std::size_t bytes) {
  return std::make_shared<BlockPool>(bytes, std::make_shared<EventCount>());
}

TEST(BlockPool, GivesTheBlockThatCameBackLast) {
  const auto pool = pool_of(100 * page);
  auto first = pool->try_allocate(page), second = pool->try_allocate(page);
  const std::byte* last = first->memory().data();
  second.reset();
  first.reset();
  EXPECT_EQ(pool->try_allocate(page)->memory().data(), last);
}

TEST(BlockPool, IsEmptyWhileAllIsTaken) {
  const auto pool = pool_of(2 * page);
  auto first = pool->try_allocate(1), second = pool->try_allocate(page);
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(pool->try_allocate(1));
  EXPECT_FALSE(pool->may_allocate(1));
  first.reset();
  EXPECT_TRUE(pool->may_allocate(1));
  EXPECT_TRUE(pool->try_allocate(1));
}

TEST(BlockPool, GivesAllOfItsMemoryInOneBlock) {
  const auto pool = pool_of(11 * page);
  EXPECT_TRUE(pool->try_allocate(11 * page));
}

TEST(BlockPool, RefusesWhatItCanNeverGiveAndSaysHowMuchItCan) {
  const auto pool = pool_of(11 * page);
  try {
    static_cast<void>(pool->try_allocate(11 * page + 1));
    FAIL() << "a block larger than the pool was given";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("44.0 KiB"));
  }
  EXPECT_TRUE(pool->may_allocate(11 * page + 1)) << "a wait for what can never be has to end";
}

TEST(BlockPool, DropsBlocksOfOtherSizesToStayWithinItsMemory) {
  const auto pool = pool_of(16 * page);
  for (std::size_t pages = 1; pages <= 16; ++pages) EXPECT_TRUE(pool->try_allocate(pages * page)) << pages;
}

TEST(BlockPool, FindsRoomAmongBlocksForEverNewSizes) {
  const auto pool = pool_of(std::size_t{1} << 30);
  const std::byte* before = pool->try_allocate(1'000'000)->memory().data();
  EXPECT_EQ(pool->try_allocate(990'000)->memory().data(), before);
}

TEST(BlockPool, OutlivesItsLastReference) {
  auto pool = pool_of(4 * page);
  auto block = pool->try_allocate(page);
  pool.reset();
  block->memory().front() = std::byte{1};
  EXPECT_EQ(block->memory().front(), std::byte{1});
}

}  // namespace
}  // namespace levada
