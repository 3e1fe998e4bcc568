#include "levada/engine/joined/joined.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/conformance_testing.h"
#include "levada/engine/joined/hosts_testing.h"

namespace levada::joined {
namespace {

using test::Hosts;
using test::Job;
using test::run_ranks;

class JoinedConformance : public testing::TestWithParam<conformance::Trial> {
 protected:
  static void expect_holds(const Hosts& hosts) {
    const auto body = [](const auto& engine, Job&) { GetParam().test.run(engine); };
    EXPECT_EQ(run_ranks(GetParam().ranks, hosts, body), "");
  }
};

TEST_P(JoinedConformance, HoldsForTwoRanksOnEachHost) {
  expect_holds({.ranks_a_host = 2});
}

TEST_P(JoinedConformance, HoldsForOneRankOnEachHost) {
  expect_holds({.ranks_a_host = 1});
}

TEST_P(JoinedConformance, HoldsForManyRanksOnEachHost) {
  expect_holds({.ranks_a_host = 3});
}

TEST_P(JoinedConformance, HoldsForATreeWithoutHeartbeat) {
  expect_holds({.ranks_a_host = 2,
                .options = {.degree = 1, .leave_timeout = std::chrono::milliseconds(500)},
                .heartbeat = Duration::max()});
}

INSTANTIATE_TEST_SUITE_P(, JoinedConformance, testing::ValuesIn(conformance::all_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

class JoinedDeath : public testing::TestWithParam<conformance::DeathTrial> {};

TEST_P(JoinedDeath, Holds) {
  for (const int ranks_a_host : {1, 2, 3}) {
    const auto body = [&](const std::shared_ptr<Engine>& engine, Job& job) {
      GetParam().test.run(engine, [&] { job.lose(engine->info().rank); });
    };
    EXPECT_EQ(run_ranks(GetParam().ranks, {.ranks_a_host = ranks_a_host}, body), "") << ranks_a_host << " a host";
  }
}

INSTANTIATE_TEST_SUITE_P(, JoinedDeath, testing::ValuesIn(conformance::all_death_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

TEST(Joined, NobodyTakesTheLeavingOfARankThatHasSeenADeathForTheEndOfItsData) {
  for (int trial = 0; trial < 20; ++trial) {
    const auto body = [](const std::shared_ptr<Engine>& engine, Job& job) {
      const int rank = engine->info().rank;
      const auto channel = rank < 2 ? engine->open(0, {1}, 1) : nullptr;
      Channel* const it[] = {channel.get()};
      const WaitFor messages{.receive = it};
      try {
        agree(*engine, {}, Deadline::after(std::chrono::seconds(20)), "test");
        if (rank == 3) return job.lose(3);
        engine->wait(rank == 1 ? messages : WaitFor{}, Deadline::after(std::chrono::seconds(20)));
        throw conformance::Failure("a wait ended though no message has come");
      } catch (const PeerLost& lost) {
        if (lost.rank() != 3) throw;
      }
    };
    EXPECT_EQ(run_ranks(4, {}, body), "");
  }
}

TEST(Joined, CopiesNothingThatItForwards) {
  constexpr std::size_t bytes = 1 << 20;
  std::atomic<std::uint64_t> copied = 0;
  const auto body = [&](const std::shared_ptr<Engine>& engine, Job&) {
    const Deadline limit = Deadline::after(std::chrono::seconds(20));
    const int rank = engine->info().rank;
    const std::vector<int> all{0, 1, 2, 3, 4, 5};
    const auto channel = engine->open(0, all, 2);
    agree(*engine, {}, limit, "test");
    if (rank == 0) copied = copied_bytes();
    agree(*engine, {}, limit, "test");
    for (int i = 0; i < 8; ++i) {
      if (rank == 0) publish(*engine, *channel, allocate(*engine, bytes, limit, "test"), bytes, limit, "test");
      static_cast<void>(receive(*engine, *channel, limit, "test"));
    }
    agree(*engine, {}, limit, "test");
    if (rank == 0) copied = copied_bytes() - copied;
  };
  EXPECT_EQ(run_ranks(6, {}, body), "");
  // The transport of the tests copies each body once for each other host.
  EXPECT_LT(copied, (8 * 2 + 1) * bytes);
}

}  // namespace
}  // namespace levada::joined
