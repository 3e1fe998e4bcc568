#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>

#include "levada/engine/conformance_testing.h"
#include "levada/engine/shm/forked_ranks_testing.h"

namespace levada::shm {
namespace {

class ShmConformance : public testing::TestWithParam<conformance::Trial> {};

TEST_P(ShmConformance, HoldsBetweenProcesses) {
  const conformance::Trial& trial = GetParam();
  EXPECT_EQ(test::run_forked(trial.ranks, [&](const auto& engine) { trial.test.run(engine); },
                             {.memory_bytes = std::size_t{1} << 30}),
            "");
}

TEST_P(ShmConformance, HoldsBetweenThreads) {
  const conformance::Trial& trial = GetParam();
  EXPECT_EQ(test::run_threads(
                trial.ranks, [&](const auto& engine) { trial.test.run(engine); }, 256 << 20),
            "");
}

TEST_P(ShmConformance, HoldsWithoutHeartbeat) {
  const conformance::Trial& trial = GetParam();
  EXPECT_EQ(test::run_threads(trial.ranks, [&](const auto& engine) { trial.test.run(engine); }, 256 << 20,
                              {.heartbeat = Duration::max()}),
            "");
}

INSTANTIATE_TEST_SUITE_P(, ShmConformance, testing::ValuesIn(conformance::all_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

class ShmDeath : public testing::TestWithParam<conformance::DeathTrial> {};

TEST_P(ShmDeath, HoldsBetweenProcesses) {
  const conformance::DeathTrial& trial = GetParam();
  const auto body = [&](const auto& engine) { trial.test.run(engine, [] { ::raise(SIGKILL); }); };
  EXPECT_EQ(test::run_forked(trial.ranks, body, {.memory_bytes = std::size_t{1} << 30}, trial.ranks - 1), "");
}

TEST_P(ShmDeath, HoldsWithoutHeartbeat) {
  const conformance::DeathTrial& trial = GetParam();
  const auto body = [&](const auto& engine) { trial.test.run(engine, [] { ::raise(SIGKILL); }); };
  const EndpointOptions options{.heartbeat = Duration::max(), .watch_interval = Duration::max()};
  EXPECT_EQ(test::run_forked_with(options, trial.ranks, 256 << 20, body, trial.ranks - 1), "");
}

INSTANTIATE_TEST_SUITE_P(, ShmDeath, testing::ValuesIn(conformance::all_death_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

}  // namespace
}  // namespace levada::shm
