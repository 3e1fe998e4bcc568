#include "levada/engine/inproc/inproc.h"

#include <gtest/gtest.h>

#include <cctype>
#include <string>

#include "levada/engine/conformance.h"

namespace levada {
namespace {

struct Trial {
  conformance::Case test;
  int ranks;
};

std::vector<Trial> all_runs() {
  std::vector<Trial> runs;
  for (const auto& test : conformance::cases()) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      if (ranks >= test.least_ranks) runs.push_back({test, ranks});
    }
  }
  return runs;
}

std::string test_name(const Trial& run) {
  std::string name(run.test.name);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name + "_" + std::to_string(run.ranks);
}

class InprocConformance : public testing::TestWithParam<Trial> {};

TEST_P(InprocConformance, Holds) {
  const Trial& run = GetParam();
  EXPECT_NO_THROW(inproc::run_ranks(run.ranks, [&](const std::shared_ptr<Engine>& engine) { run.test.run(engine); }));
}

INSTANTIATE_TEST_SUITE_P(, InprocConformance, testing::ValuesIn(all_runs()),
                         [](const auto& trial) { return test_name(trial.param); });

}  // namespace
}  // namespace levada
