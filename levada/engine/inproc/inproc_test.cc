#include "levada/engine/inproc/inproc.h"

#include <gtest/gtest.h>

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

void expect_death_is_seen(const conformance::DeathTrial& trial, const inproc::Options& options) {
  const auto body = [&](const std::shared_ptr<Engine>& engine) {
    trial.test.run(engine, [&] { inproc::lose(*engine); });
  };
  EXPECT_NO_THROW(inproc::run_ranks(trial.ranks, body, options));
}

TEST_P(InprocDeath, Holds) {
  expect_death_is_seen(GetParam(), {});
}

TEST_P(InprocDeath, HoldsWithoutHeartbeat) {
  expect_death_is_seen(GetParam(), {.heartbeat = Duration::max()});
}

INSTANTIATE_TEST_SUITE_P(, InprocDeath, testing::ValuesIn(conformance::all_death_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

}  // namespace
}  // namespace levada
