#include "levada/engine/joined/joined.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/conformance_testing.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/p2p/in_process_transport_testing.h"

namespace levada::joined {
namespace {

/// Engines of threads as ranks, of which so many are on each host.
struct Hosts {
  int ranks_a_host = 2;
  Options options{.leave_timeout = std::chrono::milliseconds(500)};
  Duration heartbeat = std::chrono::milliseconds(200);
};

class Job {
 public:
  Job(int size, const Hosts& hosts) : network(size) {
    std::vector<int> host_of;
    for (int rank = 0; rank < size; ++rank) host_of.push_back(rank / hosts.ranks_a_host);
    for (int first = 0; first < size; first += hosts.ranks_a_host) {
      const int here = std::min(hosts.ranks_a_host, size - first);
      for (auto& engine : inproc::make_group(here, {.heartbeat = hosts.heartbeat})) near.push_back(std::move(engine));
    }
    for (int rank = 0; rank < size; ++rank) {
      auto far = p2p::make_engine(std::make_shared<p2p::test::LoopbackTransport>(network, rank, host_of),
                                  {.heartbeat = hosts.heartbeat});
      engines.push_back(make_engine(near[static_cast<std::size_t>(rank)], std::move(far), hosts.options));
    }
  }
  /// As if the rank's process had ended.
  void lose(int rank) {
    inproc::lose(*near[static_cast<std::size_t>(rank)]);
    network.lose(rank);
  }

  p2p::test::LoopbackNetwork network;  // engines end before it
  std::vector<std::shared_ptr<Engine>> near;
  std::vector<std::shared_ptr<Engine>> engines;
};

/// Runs `body` on a thread for each rank. Returns a sentence for each that failed, after which the others' group ends.
std::string run_ranks(int size, const Hosts& hosts,
                      const std::function<void(const std::shared_ptr<Engine>&, Job& job)>& body) {
  Job job(size, hosts);
  std::mutex mutex;
  std::string failures;
  const auto run_one = [&](std::shared_ptr<Engine> engine) {
    try {
      body(engine, job);
    } catch (const std::exception& error) {
      engine->abort(error.what());
      const std::lock_guard lock(mutex);
      failures += std::string(error.what()) + "\n";
    }
  };
  std::vector<std::thread> threads;
  for (auto& engine : job.engines) threads.emplace_back(run_one, std::move(engine));
  for (std::thread& thread : threads) thread.join();
  job.near.clear();
  return failures;
}

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
