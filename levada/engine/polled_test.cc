#include "levada/engine/polled.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "levada/engine/collect.h"
#include "levada/engine/conformance_testing.h"
#include "levada/engine/inproc/inproc.h"

namespace levada {
namespace {

class PolledConformance : public testing::TestWithParam<conformance::Trial> {};

TEST_P(PolledConformance, Holds) {
  const conformance::Trial& run = GetParam();
  EXPECT_NO_THROW(inproc::run_ranks(
      run.ranks, [&](const std::shared_ptr<Engine>& engine) { run.test.run(polled(engine, [] {})); }));
}

INSTANTIATE_TEST_SUITE_P(, PolledConformance, testing::ValuesIn(conformance::all_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

struct Interruption : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(Polled, EndsTheCallThatWaitsWithWhatPollThrows) {
  const auto engines = inproc::make_group(2);
  int polls = 0;
  const auto engine = polled(engines[0], [&] {
    if (++polls == 3) throw Interruption("Ctrl-C");
  });
  EXPECT_THROW(agree(*engine, {}, Deadline::never(), "start-up"), Interruption);
  EXPECT_EQ(polls, 3);
}

TEST(Polled, KeepsToTheDeadline) {
  const auto engines = inproc::make_group(1);
  EXPECT_EQ(polled(engines[0], [] {})->wait({}, Deadline::now()), Woken::timeout);
  EXPECT_EQ(polled(engines[0], [] {})->wait({}, Deadline::after(std::chrono::milliseconds(120))), Woken::timeout);
}

}  // namespace
}  // namespace levada
