// What a pipeline has done, in numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levada/pipeline/placement.h"

namespace levada::pipeline {

/// Of all processes of a pipeline; a moment old.
struct Stats {
  struct OfStage {
    std::int64_t items = 0, skipped = 0;
    double busy_seconds = 0, waited_seconds = 0;
  };
  struct OfProcess {
    std::string name;  ///< "worker 0 (process 4242)"
    Role role = Role::consumer;
    std::vector<OfStage> stages;  ///< those of other processes have done nothing here
  };
  std::vector<OfStage> stages;       ///< of all processes, added up
  std::vector<OfProcess> processes;  ///< by rank: the consumer, the dispatching process if there is one, the workers
  double seconds = 0;                ///< that its epochs have taken
  std::int64_t messages = 0;         ///< with items, to and from the workers
  std::int64_t wakeups = 0;          ///< of a process that waited for one
  std::uint64_t bytes = 0;           ///< of items, to and from the workers
  std::uint64_t copied = 0;          ///< of those, how many were copied
};

}  // namespace levada::pipeline
