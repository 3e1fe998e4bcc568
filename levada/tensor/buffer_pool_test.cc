#include "levada/tensor/buffer_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
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

TEST(BufferPool, ABufferCanBeReleasedInAForkedChildWhileTheParentAllocates) {
  BufferPool pool;
  auto held = pool.allocate(mib);
  std::atomic<bool> stop = false;
  std::thread allocating([&] {
    while (!stop) static_cast<void>(pool.allocate(mib));
  });
  for (int i = 0; i < 100; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(30);
      held.owner.reset();
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "it waits for a mutex that nobody unlocks";
  }
  stop = true;
  allocating.join();
}

}  // namespace
}  // namespace levada
