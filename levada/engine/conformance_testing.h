// Helpers that the engines' tests share: the contract's cases at each number of ranks, as GoogleTest parameters.
#pragma once

#include <cctype>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/conformance.h"

namespace levada::conformance {

/// A case at a number of ranks.
template <typename AnyCase>
struct TrialOf {
  AnyCase test;
  int ranks;
};
using Trial = TrialOf<Case>;
using DeathTrial = TrialOf<DeathCase>;

/// Returns every case at 1, 2, 3, 4 and 8 ranks, except those that need more.
template <typename AnyCase>
std::vector<TrialOf<AnyCase>> trials_of(std::span<const AnyCase> all) {
  std::vector<TrialOf<AnyCase>> trials;
  for (const AnyCase& test : all) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      if (ranks >= test.min_ranks) trials.push_back({test, ranks});
    }
  }
  return trials;
}

inline std::vector<Trial> all_trials() {
  return trials_of(cases());
}
inline std::vector<DeathTrial> all_death_trials() {
  return trials_of(death_cases());
}

/// Returns a test name that consists only of letters, digits and underscores.
template <typename AnyCase>
std::string name_of(const TrialOf<AnyCase>& trial) {
  std::string name(trial.test.name);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name + "_" + std::to_string(trial.ranks);
}

/// Returns the rank of the PeerLost that `call` throws; -1 if it throws none.
inline int lost_rank(const std::function<void()>& call) {
  try {
    call();
  } catch (const PeerLost& lost) {
    return lost.rank();
  }
  return -1;
}

}  // namespace levada::conformance
