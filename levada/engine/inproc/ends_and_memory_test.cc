// Guarantees of inproc beyond the contract.
#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/conformance_testing.h"
#include "levada/engine/inproc/inproc.h"

namespace levada {
namespace {

Deadline limit() {
  return Deadline::after(std::chrono::seconds(20));
}

TEST(InprocLose, StaysTheCauseAfterAnAbort) {
  const auto engines = inproc::make_group(3);
  inproc::lose(*engines[1]);
  engines[2]->abort("a peer was lost");
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->status(0); }), 1);
}

TEST(InprocAbort, IsTheCauseEvenIfRanksLeaveBecauseOfIt) {
  constexpr int ranks = 6;
  for (int trial = 0; trial < 200; ++trial) {
    auto engines = inproc::make_group(ranks, {.heartbeat = Duration::max()});
    const auto receiving = engines[ranks - 1]->open(1, {ranks - 1}, 1);
    std::vector<std::jthread> others;
    for (int rank = 1; rank + 1 < ranks; ++rank) {
      others.emplace_back([engine = std::exchange(engines[static_cast<std::size_t>(rank)], nullptr)]() mutable {
        EXPECT_THROW(engine->wait({}, limit()), EngineError);
        engine.reset();
      });
    }
    std::jthread aborting([&] { engines[0]->abort("the dam broke"); });
    try {
      static_cast<void>(receive(*engines[ranks - 1], *receiving, limit(), "test"));
      FAIL() << "the wait returned instead of throwing";
    } catch (const EngineError& error) {
      ASSERT_STREQ(error.what(), "rank 0 aborted: the dam broke");
    }
  }
}

TEST(InprocMemory, WaitEndsWhenALeaseEnds) {
  const auto engines = inproc::make_group(2, {.memory_bytes = 1 << 16});
  const auto sending = engines[0]->open(0, {1}, 1), receiving = engines[1]->open(0, {1}, 1);
  Block all = allocate(*engines[0], 1 << 16, limit(), "test");
  publish(*engines[0], *sending, std::move(all), 8, limit(), "test");
  EXPECT_FALSE(engines[0]->try_allocate(1));
  EXPECT_EQ(engines[0]->wait({.allocate = 1}, Deadline::now()), Woken::timeout);
  Lease lease = engines[1]->try_receive(*receiving).message.value();
  auto waiting = std::async(std::launch::async, [&] { return engines[0]->wait({.allocate = 1}, limit()); });
  lease = {};
  EXPECT_EQ(waiting.get(), Woken::ready);
  EXPECT_TRUE(engines[0]->try_allocate(1));
}

TEST(InprocMemory, IsSharedByAllGroupsOfARank) {
  const auto engines = inproc::make_group(1, {.memory_bytes = 1 << 16});
  const auto group = engines[0]->subgroup(std::vector{0}, "inner");
  auto all = group->try_allocate(1 << 16);
  EXPECT_FALSE(engines[0]->try_allocate(1));
  all.reset();
  EXPECT_TRUE(engines[0]->try_allocate(1));
}

TEST(InprocGroup, NeedsAtLeastOneRank) {
  EXPECT_THROW(inproc::make_group(0), InvalidArgument);
}

}  // namespace
}  // namespace levada
