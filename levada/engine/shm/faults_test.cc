// Ranks that are really killed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/shm/forked_ranks_testing.h"

namespace levada::shm {
namespace {

const Options small{.memory_bytes = std::size_t{64} << 20};

int number_from(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

/// Numbers that forked ranks and the test share.
class Shared {
 public:
  Shared()
      : numbers_(static_cast<std::atomic<std::int64_t>*>(
            ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Shared() { ::munmap(static_cast<void*>(numbers_), 4096); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  std::atomic<std::int64_t>& operator[](int i) const { return numbers_[i]; }

 private:
  std::atomic<std::int64_t>* numbers_;
};

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
}

std::set<std::string> names_in_dev_shm() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().find("levada") != std::string::npos) names.insert(entry.path());
  }
  return names;
}

/// All ranks send to all ranks without end.
[[noreturn]] void chatter(Engine& engine) {
  std::vector<int> all;
  for (int rank = 0; rank < engine.info().size; ++rank) all.push_back(rank);
  std::vector<std::shared_ptr<Channel>> channels;
  std::vector<Channel*> take;
  for (const int from : all) {
    channels.push_back(engine.open(from, all, 4));
    take.push_back(channels.back().get());
  }
  Channel* const mine[] = {take[static_cast<std::size_t>(engine.info().rank)]};
  std::optional<Block> block;
  while (true) {
    if (!block) block = engine.try_allocate(20'000);
    if (block && engine.try_publish(*mine[0], *block, 20'000)) block.reset();
    for (Channel* const channel : take) static_cast<void>(engine.try_receive(*channel));
    engine.wait({.receive = take, .publish = mine}, test::soon());
  }
}

/// Kills one of four ranks `delay` after they have been forked. Returns a description of what went wrong, if anything.
std::string kill_one(int victim, Duration delay, std::int64_t& slowest_us) {
  constexpr int size = 4;
  const Shared seen_at;
  auto links = make_links(size);
  test::ForkedRanks ranks(size, [&](int rank) {
    auto mine = std::move(links[static_cast<std::size_t>(rank)]);
    links.clear();
    try {
      chatter(*join(rank, size, std::move(mine), small));
    } catch (const PeerLost& lost) {
      seen_at[rank] = now_us();
      throw EngineError(fmt::format("lost {}", lost.rank()));
    }
  });
  links.clear();
  std::this_thread::sleep_for(delay);
  ranks.kill(victim);
  const std::int64_t killed_at = now_us();
  std::string wrong;
  const auto endings = ranks.wait(test::soon());
  for (int rank = 0; rank < size; ++rank) {
    const auto& ending = endings[static_cast<std::size_t>(rank)];
    if (rank == victim) continue;
    if (ending.error != fmt::format("lost {}", victim)) {
      wrong +=
          fmt::format("rank {} after rank {} was killed: '{}', signal {}\n", rank, victim, ending.error, ending.signal);
    }
    slowest_us = std::max(slowest_us, seen_at[rank] - killed_at);
  }
  return wrong;
}

TEST(Death, IsDetectedByEveryOtherRankWheneverItHappens) {
  const auto names = names_in_dev_shm();
  std::mt19937 random(static_cast<unsigned>(number_from("LEVADA_SEED", 1)));
  const int kills = number_from("LEVADA_KILLS", 12);
  std::int64_t slowest_us = 0;
  for (int i = 0; i < kills; ++i) {
    const int victim = static_cast<int>(random() % 4);
    // Half of the deaths hit the start, which takes a few milliseconds.
    const auto delay = std::chrono::microseconds(random() % (i % 2 == 0 ? 8'000 : 60'000));
    ASSERT_EQ(kill_one(victim, delay, slowest_us), "") << "kill " << i << " after " << format_duration(delay);
  }
  std::cout << kills << " kills; the slowest was seen after " << slowest_us << " us\n";
  EXPECT_LT(slowest_us, 10'000'000);
  EXPECT_EQ(names_in_dev_shm(), names);
}

TEST(Death, OfAllRanksLeavesNothingBehind) {
  const auto names = names_in_dev_shm();
  auto links = make_links(3);
  test::ForkedRanks ranks(3, [&](int rank) {
    auto mine = std::move(links[static_cast<std::size_t>(rank)]);
    links.clear();
    chatter(*join(rank, 3, std::move(mine), small));
  });
  links.clear();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (int rank = 0; rank < 3; ++rank) ranks.kill(rank);
  // A rank may have seen another's death, and ended, before it was killed.
  for (const auto& ending : ranks.wait()) EXPECT_TRUE(ending.signal == SIGKILL || !ending.error.empty());
  EXPECT_EQ(names_in_dev_shm(), names);
}

TEST(Death, OfARankWithMuchMemoryIsDetectedPromptly) {
  const std::size_t bytes = static_cast<std::size_t>(number_from("LEVADA_HELD_MB", 256)) << 20;
  const Shared at;
  auto links = make_links(3);
  test::ForkedRanks ranks(3, [&](int rank) {
    auto mine = std::move(links[static_cast<std::size_t>(rank)]);
    links.clear();
    const auto engine = join(rank, 3, std::move(mine));
    const auto channel = engine->open(2, {0, 1}, 1);
    if (rank == 2) {
      const Block held = allocate(*engine, bytes, test::soon(), "test");
      publish(*engine, *channel, allocate(*engine, 1, test::soon(), "test"), 1, test::soon(), "test");
      engine->wait({.publish = std::vector<Channel*>{channel.get()}}, test::soon());
      at[2] = now_us();
      ::raise(SIGKILL);
    }
    static_cast<void>(receive(*engine, *channel, test::soon(), "test"));
    try {
      static_cast<void>(receive(*engine, *channel, test::soon(), "test"));
    } catch (const PeerLost& lost) {
      at[rank] = now_us();
      if (lost.rank() == 2) return;
    }
    throw EngineError("the death of rank 2 was not seen");
  });
  links.clear();
  const auto endings = ranks.wait();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(endings[static_cast<std::size_t>(rank)].error, "");
    EXPECT_LT(at[rank] - at[2], 10'000'000);
    std::cout << "rank " << rank << " saw a rank die that held " << format_bytes(bytes) << " after " << at[rank] - at[2]
              << " us\n";
  }
}

TEST(Death, KeepsSentMessagesReceivableAndLeasesValid) {
  auto links = make_links(2);
  test::ForkedRanks ranks(2, [&](int rank) {
    auto mine = std::move(links[static_cast<std::size_t>(rank)]);
    links.clear();
    const auto engine = join(rank, 2, std::move(mine), small);
    const auto channel = engine->open(1, {0}, 8);
    const auto ready = engine->open(0, {1}, 1);  // opening fails after the death
    if (rank == 1) {
      static_cast<void>(receive(*engine, *ready, test::soon(), "test"));
      for (int i = 0; i < 5; ++i) {
        Block block = allocate(*engine, 100'000, test::soon(), "test");
        std::fill_n(block.memory().data(), 100'000, static_cast<std::byte>(i));
        publish(*engine, *channel, std::move(block), 100'000, test::soon(), "test");
      }
      ::raise(SIGKILL);
    }
    publish(*engine, *ready, allocate(*engine, 1, test::soon(), "test"), 1, test::soon(), "test");
    // Receive the messages only once the death is known.
    try {
      engine->wait({}, test::soon());
      throw EngineError("the death was not seen");
    } catch (const PeerLost&) {
    }
    std::vector<Lease> leases;
    for (int i = 0; i < 5; ++i) leases.push_back(engine->try_receive(*channel).message.value());
    try {
      static_cast<void>(engine->try_receive(*channel));
      throw EngineError("a sixth message arrived");
    } catch (const PeerLost&) {
    }
    for (int i = 0; i < 5; ++i) {
      const ByteView bytes = leases[static_cast<std::size_t>(i)].bytes;
      const bool whole = bytes.size() == 100'000 && std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) {
                           return byte == static_cast<std::byte>(i);
                         });
      if (!whole) throw EngineError(fmt::format("message {} is not what was sent", i));
    }
  });
  links.clear();
  EXPECT_EQ(ranks.wait()[0].error, "");
}

TEST(Death, OfAReceiverReturnsBlocksToTheSender) {
  constexpr std::size_t part = 20 << 20;  // three of these fill the memory
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    const auto both = engine->open(0, {1, 2}, 4);
    if (rank == 2) {
      const auto go = engine->open(0, {2}, 1);
      const auto lease = receive(*engine, *both, test::soon(), "test");
      static_cast<void>(receive(*engine, *go, test::soon(), "test"));
      ::raise(SIGKILL);
    }
    const auto living = engine->subgroup(std::vector<int>{0, 1}, "living");
    agree(*living, {}, test::soon(), "test");
    if (rank == 1) {
      for (int i = 0; i < 3; ++i) static_cast<void>(receive(*engine, *both, test::soon(), "test"));
    } else {
      for (int i = 0; i < 3; ++i) {
        publish(*engine, *both, allocate(*engine, part, test::soon(), "test"), 1, test::soon(), "test");
      }
      if (engine->try_allocate(part)) throw EngineError("there should be no memory left");
      const auto go = engine->open(0, {2}, 1);
      publish(*engine, *go, allocate(*engine, 1, test::soon(), "test"), 1, test::soon(), "test");
      // Rank 2's death returns the two messages that it has not received and the one that it holds.
      static_cast<void>(allocate(*living, 3 * part, test::soon(), "test"));
    }
    agree(*living, {}, test::soon(), "test");
  };
  EXPECT_EQ(test::run_forked(3, body, small), "rank 2 (signal 9): \n");
}

TEST(Aborts, OfManyGroupsDoNotEndTheJob) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    for (int number = 0; number < 200; ++number) {
      const auto group = engine->subgroup(std::vector<int>{0, 1}, "given up");
      if (engine->info().rank == number % 2) {
        group->abort("only this group");
      } else {
        EXPECT_THROW(group->wait({}, test::soon()), EngineError);
      }
      agree(*engine, {}, test::soon(), "test");
    }
  };
  EXPECT_EQ(test::run_forked(2, body, small), "");
}

TEST(Aborts, OfMoreGroupsThanARankCanMissEndTheJobAndNameTheCause) {
  enum { has_joined, have_ended, have_seen };
  const Shared at;
  const auto await = [&](int what) {
    while (at[what] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const auto body = [&](const std::shared_ptr<Engine>& engine) {
    if (engine->info().rank == 1) {
      await(has_joined);  // a rank that joins sees the endings until then
      for (int number = 0; number < 100; ++number) {
        engine->subgroup(std::vector<int>{0, 1}, "given up")->abort("nobody looks");
      }
      at[have_ended] = 1;
      return await(have_seen);
    }
    at[has_joined] = 1;
    await(have_ended);
    std::string seen;
    try {
      engine->wait({}, test::soon());
    } catch (const EngineError& error) {
      seen = error.what();
    }
    at[have_seen] = 1;
    if (seen.find("has ended more than 64 groups while this rank made no call") == seen.npos) throw EngineError(seen);
  };
  EXPECT_EQ(test::run_forked(2, body, small), "");
}

}  // namespace
}  // namespace levada::shm
