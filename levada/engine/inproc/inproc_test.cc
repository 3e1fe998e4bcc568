#include "levada/engine/inproc/inproc.h"

#include <gtest/gtest.h>

#include <future>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/conformance_testing.h"

namespace levada {
namespace {

class InprocConformance : public testing::TestWithParam<conformance::Trial> {};

TEST_P(InprocConformance, Holds) {
  const conformance::Trial& run = GetParam();
  EXPECT_NO_THROW(inproc::run_ranks(run.ranks, [&](const std::shared_ptr<Engine>& engine) { run.test.run(engine); }));
}

TEST_P(InprocConformance, HoldsWithoutHeartbeat) {
  EXPECT_NO_THROW(inproc::run_ranks(GetParam().ranks, GetParam().test.run, {.heartbeat = Duration::max()}));
}

INSTANTIATE_TEST_SUITE_P(, InprocConformance, testing::ValuesIn(conformance::all_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

class InprocDeath : public testing::TestWithParam<conformance::DeathTrial> {};

TEST_P(InprocDeath, Holds) {
  const conformance::DeathTrial& run = GetParam();
  EXPECT_NO_THROW(inproc::run_ranks(
      run.ranks, [&](const std::shared_ptr<Engine>& engine) { run.test.run(engine, [&] { inproc::lose(*engine); }); }));
}

INSTANTIATE_TEST_SUITE_P(, InprocDeath, testing::ValuesIn(conformance::all_death_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

constexpr auto generous = std::chrono::seconds(20);

Deadline limit() {
  return Deadline::after(generous);
}

TEST(InprocLose, WakesAWaitNamingTheLostRank) {
  const auto engines = inproc::make_group(3);
  auto waiting = std::async(std::launch::async,
                            [&] { return conformance::lost_rank([&] { engines[0]->wait({}, Deadline::never()); }); });
  inproc::lose(*engines[2]);
  EXPECT_EQ(waiting.get(), 2);
}

TEST(InprocLose, LetsMessagesBeTakenThatHadBeenPublished) {
  const auto engines = inproc::make_group(2);
  const auto sending = engines[1]->open(1, {0}, 2), taking = engines[0]->open(1, {0}, 2);
  for (int i = 0; i < 2; ++i) {
    Block block = allocate(*engines[1], 8, limit(), "test");
    block.memory()[0] = static_cast<std::byte>(i);
    publish(*engines[1], *sending, std::move(block), 8, limit(), "test");
  }
  inproc::lose(*engines[1]);
  Channel* const channels[] = {taking.get()};
  std::vector<Lease> leases;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(engines[0]->wait({.receive = channels}, limit()), Woken::ready);
    leases.push_back(engines[0]->try_receive(*taking).message.value());
  }
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->try_receive(*taking); }), 1);
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->wait({.receive = channels}, limit()); }), 1);
  EXPECT_EQ(leases[1].bytes[0], std::byte{1});
}

TEST(InprocLose, EndsEveryOtherCall) {
  const auto engines = inproc::make_group(3);
  const auto channel = engines[0]->open(0, {0}, 1);
  Block block = allocate(*engines[0], 8, limit(), "test");
  Channel* const channels[] = {channel.get()};
  inproc::lose(*engines[1]);
  Engine& engine = *engines[0];
  EXPECT_EQ(conformance::lost_rank([&] { engine.try_publish(*channel, block, 8); }), 1);
  EXPECT_EQ(conformance::lost_rank([&] { engine.try_allocate(8); }), 1);
  EXPECT_EQ(conformance::lost_rank([&] { engine.open(0, {0}, 1); }), 1);
  EXPECT_EQ(conformance::lost_rank([&] { engine.subgroup(std::vector{0}, "late"); }), 1);
  EXPECT_EQ(conformance::lost_rank([&] { engine.wait({.publish = channels}, limit()); }), 1);
  EXPECT_EQ(conformance::lost_rank([&] { engine.post({}); }), 1);
  EXPECT_EQ(conformance::lost_rank([&] { engine.status(0); }), 1);
  EXPECT_EQ(conformance::lost_rank([&] { engine.holders(*channel); }), 1);
}

TEST(InprocLose, ReachesTheGroupsThatTheRankIsInUnderItsNumberThere) {
  const auto engines = inproc::make_group(3);
  const std::vector<int> both{2, 0}, others{0, 1};
  const auto with = engines[0]->subgroup(both, "with"), lost = engines[2]->subgroup(both, "with");
  const auto without = engines[0]->subgroup(others, "without");
  inproc::lose(*lost);
  EXPECT_EQ(conformance::lost_rank([&] { with->status(0); }), 0);
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->status(0); }), 2);
  EXPECT_EQ(conformance::lost_rank([&] { without->status(0); }), -1);
}

TEST(InprocLose, ComesBeforeAnAbortThatFollows) {
  const auto engines = inproc::make_group(3);
  inproc::lose(*engines[1]);
  engines[2]->abort("a peer was lost");
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->status(0); }), 1);
}

TEST(InprocLose, DoesNothingToARankThatHasLeft) {
  auto engines = inproc::make_group(2);
  engines[1].reset();
  EXPECT_EQ(conformance::lost_rank([&] { engines[0]->status(0); }), -1);
}

TEST(InprocMemory, ComesBackToAWaitWhenALeaseEnds) {
  const auto engines = inproc::make_group(2, {.memory_bytes = 1 << 16});
  const auto sending = engines[0]->open(0, {1}, 1), taking = engines[1]->open(0, {1}, 1);
  Block all = allocate(*engines[0], 1 << 16, limit(), "test");
  publish(*engines[0], *sending, std::move(all), 8, limit(), "test");
  EXPECT_FALSE(engines[0]->try_allocate(1));
  EXPECT_EQ(engines[0]->wait({.allocate = 1}, Deadline::now()), Woken::timeout);
  auto lease = engines[1]->try_receive(*taking).message;
  auto waiting = std::async(std::launch::async, [&] { return engines[0]->wait({.allocate = 1}, limit()); });
  lease.reset();
  EXPECT_EQ(waiting.get(), Woken::ready);
  EXPECT_TRUE(engines[0]->try_allocate(1));
}

TEST(InprocMemory, IsSharedByARanksGroups) {
  const auto engines = inproc::make_group(1, {.memory_bytes = 1 << 16});
  const auto group = engines[0]->subgroup(std::vector{0}, "inner");
  auto all = group->try_allocate(1 << 16);
  EXPECT_FALSE(engines[0]->try_allocate(1));
  all.reset();
  EXPECT_TRUE(engines[0]->try_allocate(1));
}

TEST(InprocGroup, NeedsARank) {
  EXPECT_THROW(inproc::make_group(0), InvalidArgument);
}

TEST(InprocRunRanks, ThrowsWhatARankThrewAndEndsTheOthers) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    if (engine->info().rank == 2) throw SourceError("line 7 is bad");
    engine->wait({}, Deadline::never());
  };
  EXPECT_THROW(inproc::run_ranks(4, body), SourceError);
}

TEST(InprocRunRanks, ThrowsTheErrorOfARankThatAbortedItself) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    if (engine->info().rank != 1) engine->wait({}, Deadline::never());
    engine->abort("a reason of its own");
    throw SourceError("line 7 is bad");
  };
  EXPECT_THROW(inproc::run_ranks(3, body), SourceError);
}

TEST(InprocRunRanks, ThrowsTheAbortWhenThatIsAllThereIs) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    if (engine->info().rank == 1) engine->abort("a reason of its own");
    else engine->wait({}, Deadline::never());
  };
  EXPECT_THROW(inproc::run_ranks(3, body), EngineError);
}

}  // namespace
}  // namespace levada
