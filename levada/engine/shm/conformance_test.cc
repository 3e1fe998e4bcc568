#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "levada/engine/conformance.h"
#include "levada/engine/shm/forked_ranks_testing.h"

namespace levada::shm {
namespace {

struct Trial {
  conformance::Case test;
  int ranks;
};

std::vector<Trial> trials() {
  std::vector<Trial> all;
  for (const auto& test : conformance::cases()) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      if (ranks >= test.least_ranks) all.push_back({test, ranks});
    }
  }
  return all;
}

std::string name_of(const Trial& trial) {
  std::string name(trial.test.name);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return fmt::format("{}_{}", name, trial.ranks);
}

class ShmConformance : public testing::TestWithParam<Trial> {};

TEST_P(ShmConformance, HoldsBetweenProcesses) {
  const Trial& trial = GetParam();
  EXPECT_EQ(test::run_forked(trial.ranks, [&](const auto& engine) { trial.test.run(engine); },
                             {.memory_bytes = std::size_t{1} << 30}),
            "");
}

TEST_P(ShmConformance, HoldsBetweenThreads) {
  const Trial& trial = GetParam();
  EXPECT_EQ(test::run_threads(
                trial.ranks, [&](const auto& engine) { trial.test.run(engine); }, 256 << 20),
            "");
}

INSTANTIATE_TEST_SUITE_P(, ShmConformance, testing::ValuesIn(trials()),
                         [](const auto& trial) { return name_of(trial.param); });

}  // namespace
}  // namespace levada::shm
