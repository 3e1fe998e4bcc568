#include "levada/tensor/buffer_pool.h"

#include <gtest/gtest.h>

#include <vector>

namespace levada {
namespace {

constexpr std::uint64_t mib = 1 << 20;

TEST(BufferPool, CachedPlusUsedMemoryNeverExceedsTheHighWaterMarkOfUsedMemory) {
  BufferPool pool;
  std::vector<BufferPool::Buffer> small;
  for (int i = 0; i < 16; ++i) small.push_back(pool.allocate(mib));
  small.clear();
  EXPECT_EQ(pool.cached_bytes(), 16 * mib);
  const auto large = pool.allocate(8 * mib);  // larger than each of those
  EXPECT_EQ(pool.cached_bytes(), 8 * mib);
  const auto larger = pool.allocate(16 * mib);
  EXPECT_EQ(pool.cached_bytes(), 0u);
}

TEST(BufferPool, ReusesTheBufferThatWasReleasedLast) {
  BufferPool pool;
  auto first = pool.allocate(1000);
  auto second = pool.allocate(1000);
  const auto* data = second.data;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
  first.owner.reset();
  second.owner.reset();
  EXPECT_GE(pool.cached_bytes(), 2000u);
  EXPECT_EQ(pool.allocate(1010).data, data);
  pool.trim();
  EXPECT_EQ(pool.cached_bytes(), 0u);
}

TEST(BufferPool, CachesAtMostItsLimit) {
  BufferPool pool;
  std::vector<BufferPool::Buffer> buffers;
  for (int i = 0; i < 8; ++i) buffers.push_back(pool.allocate(mib));
  buffers.resize(4);
  pool.limit_cache(2 * mib);
  EXPECT_EQ(pool.cached_bytes(), 2 * mib);
  buffers.clear();
  EXPECT_EQ(pool.cached_bytes(), 2 * mib);
}

}  // namespace
}  // namespace levada
