#include "levada/engine/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "levada/base/error.h"
#include "levada/engine/sizes_testing.h"

namespace levada {
namespace {

constexpr MemoryLimits plenty{std::uint64_t{1} << 40, std::uint64_t{1} << 40};

std::shared_ptr<BlockPool> pool_of(std::size_t bytes, std::function<void()> on_free = {}) {
  return make_heap_pool(bytes, {.engine = "test", .on_free = std::move(on_free), .limits = [] { return plenty; }});
}

/// Heap memory that can be made to refuse requests, and that counts its calls.
class Source final : public MemorySource {
 public:
  struct Calls {
    std::atomic<bool> refuses = false;
    std::atomic<int> populated = 0, discarded = 0;
  };
  Source(std::size_t bytes, std::shared_ptr<Calls> calls) : heap_(bytes), calls_(std::move(calls)) {}

  std::span<std::byte> memory() const override { return heap_.memory(); }
  bool populate(Interval interval) noexcept override {
    ++calls_->populated;
    return !calls_->refuses && heap_.populate(interval);
  }
  bool discard(Interval interval) noexcept override {
    ++calls_->discarded;
    return heap_.discard(interval);
  }

 private:
  HeapSource heap_;
  std::shared_ptr<Calls> calls_;
};

struct Counted {
  std::shared_ptr<Source::Calls> calls = std::make_shared<Source::Calls>();
  std::shared_ptr<BlockPool> pool;

  explicit Counted(
      std::size_t bytes, std::function<MemoryLimits()> limits = [] { return plenty; })
      : pool(std::make_shared<BlockPool>(std::make_unique<Source>(bytes, calls),
                                         BlockPoolOptions{.engine = "test", .limits = std::move(limits)})) {}
};

TEST(BlockPool, ReusesTheMostRecentlyReturnedBlock) {
  const auto pool = pool_of(100 * page);
  auto first = pool->try_allocate(page), second = pool->try_allocate(page);
  const std::byte* last = first->memory().data();
  second.reset();
  first.reset();
  EXPECT_EQ(pool->try_allocate(page)->memory().data(), last);
}

TEST(BlockPool, StorageLeavesMemoryAndSlotsForMessages) {
  const auto stored = [](const std::shared_ptr<BlockPool>& pool, std::size_t bytes) {
    std::vector<Block> blocks;
    while (auto block = pool->try_allocate(bytes, BlockUse::storage)) blocks.push_back(*std::move(block));
    return blocks;
  };
  constexpr std::size_t mib = 1 << 20;
  for (const auto& [size, stores] : {std::pair(32 * mib, 16u), {20 * mib, 10u}, {12 * mib, 4u}, {8 * mib, 0u}}) {
    const auto pool = pool_of(size);
    const auto blocks = stored(pool, mib);
    EXPECT_EQ(blocks.size(), stores);
    EXPECT_TRUE(pool->try_allocate(8 * mib));
    EXPECT_FALSE(pool->try_allocate(2 * size, BlockUse::storage));
  }
  const auto few = make_heap_pool(32 * mib, {.engine = "test", .limits = [] { return plenty; }, .max_slots = 4});
  const auto two = stored(few, 1);
  EXPECT_EQ(two.size(), 2u);
  EXPECT_TRUE(few->try_allocate(1));
}

TEST(BlockPool, AllocatesNothingWhileAllIsInUse) {
  const auto pool = pool_of(2 * page);
  auto first = pool->try_allocate(1), second = pool->try_allocate(page);
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(pool->try_allocate(1));
  EXPECT_FALSE(pool->may_allocate(1));
  EXPECT_EQ(pool->retry_after(), std::nullopt) << "only a returned block can make room";
  first.reset();
  EXPECT_TRUE(pool->may_allocate(1));
  EXPECT_TRUE(pool->try_allocate(1));
}

TEST(BlockPool, AllocatesAllOfItsMemoryInOneBlock) {
  const auto pool = pool_of(11 * page);
  EXPECT_TRUE(pool->try_allocate(11 * page));
}

TEST(BlockPool, RejectsMoreThanItsMaximumNamingTheMaximumAndTheEngine) {
  const auto pool = pool_of(11 * page);
  EXPECT_EQ(pool->max_block(), 11 * page);
  try {
    static_cast<void>(pool->try_allocate(11 * page + 1));
    FAIL() << "a block larger than the pool was allocated";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("44.0 KiB"), testing::HasSubstr("test engine")));
  }
  EXPECT_TRUE(pool->may_allocate(11 * page + 1)) << "a wait for an impossible block must end";
}

TEST(BlockPool, RejectsMoreThanTheSystemsLimit) {
  const Counted counted(1024 * mib, [] { return MemoryLimits{100 * mib, 100 * mib}; });
  EXPECT_LT(counted.pool->max_block(), 100 * mib);
  EXPECT_THROW(static_cast<void>(counted.pool->try_allocate(100 * mib)), InvalidArgument);
}

TEST(BlockPool, ReusesMemoryOfOtherSizesToStayWithinItsCapacity) {
  const auto pool = pool_of(16 * page);
  for (std::size_t pages = 1; pages <= 16; ++pages) EXPECT_TRUE(pool->try_allocate(pages * page)) << pages;
}

TEST(BlockPool, ASteadyStreamMakesNoSystemCall) {
  const Counted counted(1024 * mib);
  const auto round = [&] {
    std::vector<Block> blocks;
    for (const std::size_t pages : {1, 3, 70, 1, 900, 33}) blocks.push_back(*counted.pool->try_allocate(pages * page));
  };
  round();
  const int before = counted.calls->populated + counted.calls->discarded;
  for (int i = 0; i < 100; ++i) round();
  EXPECT_EQ(counted.calls->populated + counted.calls->discarded, before);
}

TEST(BlockPool, KeepsLittleMoreThanThePeakOfRaggedSizes) {
  const auto pool = pool_of(1024 * mib);
  std::mt19937 random(5);
  std::deque<Block> blocks;
  std::deque<std::size_t> sizes;
  std::uint64_t asked = 0, peak = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::size_t bytes = 1 + random() % mib;
    if (blocks.size() == 12) {
      asked -= sizes.front();
      sizes.pop_front();
      blocks.pop_front();
    }
    blocks.push_back(*pool->try_allocate(bytes));
    sizes.push_back(bytes);
    asked += bytes;
    peak = std::max(peak, asked);
    ASSERT_LE(static_cast<double>(pool->resident()), 1.3 * static_cast<double>(peak)) << "after message " << i;
  }
}

TEST(BlockPool, AllocatesOnlyAvailableMemoryAndRetries) {
  std::atomic<std::uint64_t> available = 60 * mib;
  const Counted counted(1000 * mib, [&] { return MemoryLimits{1000 * mib, available}; });
  EXPECT_FALSE(counted.pool->try_allocate(40 * mib)) << "a margin of the limit stays free";
  EXPECT_TRUE(counted.pool->retry_after()) << "memory that other processes free causes no notification";
  EXPECT_TRUE(counted.pool->try_allocate(10 * mib));
  available = 200 * mib;
  EXPECT_TRUE(counted.pool->may_allocate(40 * mib));
}

TEST(BlockPool, ReleasesItsCacheBeforeAnAllocationFails) {
  std::atomic<std::uint64_t> available = 100 * mib;
  const Counted counted(1000 * mib, [&] { return MemoryLimits{1000 * mib, available}; });
  std::vector<Block> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(*counted.pool->try_allocate(8 * mib));
  available = 20 * mib;
  for (std::size_t i = 0; i < 8; i += 2) blocks[i] = Block();
  EXPECT_FALSE(counted.pool->try_allocate(30 * mib));
  EXPECT_EQ(counted.pool->resident(), 32 * mib);
  EXPECT_EQ(counted.pool->trim(), 0U);
}

TEST(BlockPool, RetriesAfterAPauseIfTheSystemRefusesMemory) {
  const Counted counted(64 * mib);
  counted.calls->refuses = true;
  EXPECT_FALSE(counted.pool->try_allocate(mib));
  EXPECT_FALSE(counted.pool->may_allocate(mib));
  EXPECT_EQ(counted.calls->populated, 1) << "the pool must not retry at once";
  EXPECT_EQ(counted.pool->in_use() + counted.pool->resident(), 0U);
  counted.calls->refuses = false;
  const auto deadline = Deadline::after(std::chrono::seconds(30));
  while (!counted.pool->may_allocate(mib) && !deadline.expired())
    std::this_thread::sleep_for(*counted.pool->retry_after());
  EXPECT_TRUE(counted.pool->try_allocate(mib));
}

TEST(BlockPool, TrimReleasesUnusedMemory) {
  const auto pool = pool_of(64 * mib);
  const Block kept = *pool->try_allocate(3 * mib);
  static_cast<void>(pool->try_allocate(5 * mib));
  EXPECT_EQ(pool->resident(), 8 * mib);
  EXPECT_EQ(pool->trim(), 5 * mib);
  EXPECT_EQ(pool->resident(), 3 * mib);
  EXPECT_EQ(pool->in_use(), 3 * mib);
  EXPECT_EQ(pool->trim(), 0U);
}

TEST(BlockPool, CallsOnFreeWhenABlockIsReturned) {
  int calls = 0;
  const auto pool = pool_of(64 * page, [&] { ++calls; });
  auto block = pool->try_allocate(page);
  EXPECT_EQ(calls, 0);
  block.reset();
  EXPECT_EQ(calls, 1);
}

TEST(BlockPool, APublishedBlockStaysInUseUntilItsSlotIsReturned) {
  const auto pool = pool_of(64 * page);
  Block block = *pool->try_allocate(page), other = *pool->try_allocate(page);
  const auto slot = pool->slot_at(block.memory().data()).value();
  EXPECT_NE(slot, pool->slot_at(other.memory().data()).value());
  const std::byte* const data = block.release().data();
  EXPECT_EQ(pool->in_use(), 2 * page);
  pool->free_block(slot);
  EXPECT_EQ(pool->in_use(), page);
  EXPECT_EQ(pool->try_allocate(page)->memory().data(), data);
}

TEST(BlockPool, HasNoSlotForABlockOfAnotherPool) {
  const auto pool = pool_of(64 * page), other = pool_of(64 * page);
  const Block theirs = *other->try_allocate(page), ours = *pool->try_allocate(2 * page);
  EXPECT_FALSE(pool->slot_at(theirs.memory().data()));
  EXPECT_FALSE(pool->slot_at(ours.memory().data() + page));
  EXPECT_FALSE(pool->slot_at(nullptr));
}

TEST(BlockPool, LivesAsLongAsItsBlocks) {
  auto pool = pool_of(4 * page);
  auto block = pool->try_allocate(page);
  pool.reset();
  block->memory().front() = std::byte{1};
  EXPECT_EQ(block->memory().front(), std::byte{1});
}

TEST(BlockPool, BlocksOfManyThreadsNeverOverlap) {
  const auto pool = pool_of(64 * mib);
  const auto body = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 2000; ++i) {
      const auto block = pool->try_allocate(1 + random() % (64 * page));
      if (!block) continue;
      const auto memory = block->memory();
      const auto mark = static_cast<std::byte>(random());
      for (std::size_t at = 0; at < memory.size(); at += page) memory[at] = mark;
      if (i % 100 == 0) pool->trim();
      for (std::size_t at = 0; at < memory.size(); at += page) ASSERT_EQ(memory[at], mark);
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(body, seed);
  threads.clear();
  EXPECT_EQ(pool->in_use(), 0U);
}

TEST(BlockPool, DoesNothingInAForkedChild) {
  auto pool = pool_of(64 * page, [] { ::_exit(2); });
  std::optional<Block> block = pool->try_allocate(page);
  const pid_t child = ::fork();
  if (child == 0) {
    bool refuses = false;
    try {
      static_cast<void>(pool->try_allocate(page));
    } catch (const EngineError&) {
      refuses = true;
    }
    block.reset();
    pool.reset();
    ::_exit(refuses ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pool->in_use(), page);
  static_cast<void>(block->release());
}

TEST(BlockPool, CanBeDestroyedInAForkedChildWhileTheParentUsesIt) {
  const auto pool = pool_of(64 * mib);
  std::jthread worker([&](const std::stop_token& stop) {
    std::mt19937 random(1);
    while (!stop.stop_requested()) static_cast<void>(pool->try_allocate(1 + random() % mib));
  });
  for (int i = 0; i < 50; ++i) {
    auto block = pool->try_allocate(page);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(30);
      block.reset();
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace levada
