// How much memory messages take, and what happens when there is none.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/shm/endpoint.h"
#include "levada/engine/shm/forked_ranks_testing.h"

namespace levada::shm {
namespace {

constexpr std::size_t mib = 1 << 20;

std::shared_ptr<Engine> alone(std::size_t memory_bytes, std::function<MemoryLimits()> limits) {
  auto memory = test::share_in_process(1, memory_bytes);
  auto endpoint = std::make_shared<ShmEndpoint>(std::move(memory[0]), EndpointOptions{.limits = std::move(limits)});
  endpoint->watch();
  return make_engine(std::move(endpoint));
}

TEST(Memory, StaysBoundedForManyMessagesOfManySizes) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    constexpr int messages = 100'000;
    const auto channel = engine->open(0, {0, 1}, 4);
    std::mt19937 random(3);
    for (int i = 0; i < messages; ++i) {
      const std::size_t bytes = 1 + random() % (i % 100 == 0 ? mib : 60'000);
      if (engine->info().rank == 0) {
        publish(*engine, *channel, allocate(*engine, bytes, test::soon(), "test"), bytes, test::soon(), "test");
      }
      test::expect(receive(*engine, *channel, test::soon(), "test")->bytes.size() == bytes,
                   "each message has its own size");
    }
    agree(*engine, {}, test::soon(), "test");
    const std::uint64_t held = engine->trim();
    test::expect(held <= 16 * mib,
                 fmt::format("{} messages leave a pool of at most 16 MiB; it is {}", messages, format_bytes(held)));
    // A peer may have released the few bytes of agree() in between.
    test::expect(engine->trim() <= mib / 16, "memory is released only once");
  };
  EXPECT_EQ(test::run_forked(2, body), "");
}

TEST(Memory, AllocationWaitsUntilTheDeadlineIfTheSystemRefuses) {
  auto memory = test::share_in_process(1, 64 * mib);
  const auto range = memory[0].data[0]->memory();
  // An empty file replaces the memory, so that filling it fails as on a system that is out of memory.
  const UniqueFd file(::memfd_create("empty", MFD_CLOEXEC));
  ASSERT_EQ(::mmap(range.data(), range.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0),
            range.data());
  auto endpoint = std::make_shared<ShmEndpoint>(std::move(memory[0]), EndpointOptions{.limits = [] {
                                                  return MemoryLimits{1024 * mib, 1024 * mib};
                                                }});
  endpoint->watch();
  const auto engine = make_engine(std::move(endpoint));
  EXPECT_THROW(allocate(*engine, mib, Deadline::after(std::chrono::milliseconds(300)), "test"), Timeout);
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(range.size())), 0);
  EXPECT_EQ(allocate(*engine, mib, test::soon(), "test").memory().size(), mib);
}

TEST(Memory, HoldsAMessageOfHundredsOfMebibytes) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    constexpr std::size_t bytes = 300 * mib + 17;
    const auto channel = engine->open(1, {0}, 1);
    if (engine->info().rank == 1) {
      Block block = allocate(*engine, bytes, test::soon(), "test");
      block.memory()[bytes - 1] = std::byte{42};
      publish(*engine, *channel, std::move(block), bytes, test::soon(), "test");
    } else {
      const auto lease = receive(*engine, *channel, test::soon(), "test");
      test::expect(lease->bytes.size() == bytes && lease->bytes[bytes - 1] == std::byte{42},
                   "the whole message arrives");
    }
    agree(*engine, {}, test::soon(), "test");
    test::expect(engine->info().rank == 0 || engine->trim() >= bytes, "trim() releases the message");
  };
  EXPECT_EQ(test::run_forked(2, body), "");
}

TEST(Memory, AllocationWaitsWhileAllIsInUse) {
  const auto engine = alone(mib, [] { return memory_limits(); });
  Block first = *engine->try_allocate(mib / 2);
  const Block second = *engine->try_allocate(mib / 2);
  EXPECT_FALSE(engine->try_allocate(1));
  EXPECT_EQ(engine->wait({.allocate = 1}, Deadline::now()), Woken::timeout);
  first = Block();
  EXPECT_EQ(engine->wait({.allocate = mib / 2}, test::soon()), Woken::ready);
  EXPECT_TRUE(engine->try_allocate(mib / 2));
}

TEST(Memory, RequestBeyondTheLimitIsRejectedWithTheLimit) {
  const auto engine = alone(mib, [] { return memory_limits(); });
  try {
    static_cast<void>(engine->try_allocate(mib + 1));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("1.0 MiB"), std::string::npos) << error.what();
  }
}

TEST(Memory, StaysWithinAControlGroupsLimit) {
  std::uint64_t available = 1000 * mib;
  const auto engine = alone(1000 * mib, [&] { return MemoryLimits{1000 * mib, available}; });
  EXPECT_THROW(static_cast<void>(engine->try_allocate(990 * mib)), InvalidArgument);
  available = 60 * mib;
  EXPECT_FALSE(engine->try_allocate(40 * mib));
  const auto within = engine->try_allocate(10 * mib);
  EXPECT_TRUE(within);
  available = 200 * mib;
  EXPECT_EQ(engine->wait({.allocate = 40 * mib}, test::soon()), Woken::ready);
}

TEST(Memory, ReleasesItsCacheBeforeAnAllocationFails) {
  std::uint64_t available = 100 * mib;
  std::uint64_t given_back = 0;
  const auto engine = alone(1000 * mib, [&] { return MemoryLimits{1000 * mib, available + given_back}; });
  std::vector<Block> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(*engine->try_allocate(8 * mib));
  available = 20 * mib;
  for (int i = 0; i < 8; i += 2) blocks[static_cast<std::size_t>(i)] = Block();
  EXPECT_FALSE(engine->try_allocate(30 * mib));
  EXPECT_EQ(engine->trim(), 0U) << "the cache should already have been released";
}

TEST(Memory, FitsALimitedAddressSpaceAndFileSize) {
  const auto body = [](int /*rank*/) {
    const rlimit address{std::size_t{4} << 30, RLIM_INFINITY};
    const rlimit file{64 * mib, RLIM_INFINITY};
    test::expect(::setrlimit(RLIMIT_FSIZE, &file) == 0, "the file size can be limited");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    test::expect(::setrlimit(RLIMIT_AS, &address) == 0, "the address space can be limited");
#else
    static_cast<void>(address);
#endif
    const auto engine = join(0, 1, std::move(make_links(1)[0]));
    test::expect(engine->try_allocate(64 * mib).has_value(), "the engine has what the limits allow");
  };
  test::ForkedRanks ranks(1, body);
  EXPECT_EQ(ranks.wait()[0].error, "");
}

TEST(Memory, OfALeaseOutlivesBothEnds) {
  const auto body = [](std::shared_ptr<Engine> engine) {
    auto channel = engine->open(0, {0, 1}, 2);
    if (engine->info().rank == 0) {
      Block block = allocate(*engine, 5000, test::soon(), "test");
      std::memset(block.memory().data(), 7, 5000);
      publish(*engine, *channel, std::move(block), 5000, test::soon(), "test");
    }
    const Lease lease = *receive(*engine, *channel, test::soon(), "test");
    agree(*engine, {}, test::soon(), "test");
    channel.reset();
    engine.reset();
    test::expect(lease.bytes[4999] == std::byte{7}, "a lease shows its message after the engine has gone");
  };
  EXPECT_EQ(test::run_forked(2, [&](std::shared_ptr<Engine> engine) { body(std::move(engine)); }), "");
}

TEST(Memory, StaysResidentIfAReceiverKeepsItsPages) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    const auto channel = engine->open(0, {0, 1}, 2);
    const auto send_one = [&] {
      if (engine->info().rank == 0) {
        publish(*engine, *channel, allocate(*engine, mib, test::soon(), "test"), mib, test::soon(), "test");
      }
      return *receive(*engine, *channel, test::soon(), "test");
    };
    send_one();
    agree(*engine, {}, test::soon(), "test");
    if (engine->info().rank == 0)
      test::expect(engine->trim() >= mib / 2, "no receiver has asked to keep the pages yet");
    agree(*engine, {}, test::soon(), "test");
    Lease lease = send_one();
    const std::array<std::byte, 8> elsewhere{};
    test::expect(!engine->keep_pages(elsewhere), "other memory is not the engine's");
    if (engine->info().rank == 1) test::expect(engine->keep_pages(lease.bytes), "ranks share a message's memory");
    lease = {};
    agree(*engine, {}, test::soon(), "test");
    if (engine->info().rank == 0) test::expect(engine->trim() == 0, "all pages stay");
  };
  EXPECT_EQ(test::run_forked(2, body), "");
}

std::uint64_t resident_bytes(const Mapping& mapping) {
  std::vector<unsigned char> pages(mapping.size() / page_bytes);
  if (::mincore(mapping.data(), mapping.size(), pages.data()) != 0) throw EngineError("mincore");
  const auto is_resident = [](unsigned char page) { return (page & 1U) != 0; };
  return page_bytes * static_cast<std::uint64_t>(std::count_if(pages.begin(), pages.end(), is_resident));
}

TEST(Memory, OfIdleRankPairsStaysUntouchedWhenOthersLeaveOrDie) {
  constexpr int ranks = 256;
  auto memories = test::share_in_process(ranks, 1 << 16);
  const auto control = memories.front().control;
  std::vector<std::shared_ptr<Engine>> engines;
  for (HostMemory& memory : memories) engines.push_back(make_engine(std::make_shared<ShmEndpoint>(std::move(memory))));
  const std::uint64_t before = resident_bytes(*control);
  engines.back().reset();
  Control(control->data(), ranks).note_end(ranks - 2);
  for (int rank = 0; rank < ranks - 2; ++rank) {
    EXPECT_THROW(engines[static_cast<std::size_t>(rank)]->status(0), PeerLost);
  }
  engines.clear();
  EXPECT_LT(resident_bytes(*control) - before, 16 * mib);
}

}  // namespace
}  // namespace levada::shm
