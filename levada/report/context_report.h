// The times of steps with one and with several sizes of context parallelism, as `levada plan` predicts them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "levada/plan/step_plan.h"
#include "levada/report/style.h"

namespace levada::report {

/// Sums over the steps of some data.
struct ContextReport {
  /// One way to divide steps.
  struct DivisionTotals {
    double time = 0;  ///< in the unit of ContextCost
    std::int64_t micro_batches = 0;
  };

  Balance by = {};
  int ranks = 1;    ///< dp x cp ranks
  int cp_size = 1;  ///< ranks along cp in the mesh
  std::int64_t steps = 0, samples = 0, tokens = 0;
  std::int64_t longest = 0;                          ///< tokens of the longest sample
  bool holds_samples = true;                         ///< whether all samples fit micro-batches of the mesh's cp
  std::optional<DivisionTotals> in_order, balanced;  ///< with the mesh's cp; nothing if a step cannot be divided
  DivisionTotals dynamic;
  double bound = 0;                            ///< lower bound of the time of `dynamic`
  std::map<int, std::int64_t> tokens_by_size;  ///< tokens by the number of ranks that share them

  /// Adds the next step. Throws InvalidArgument as plan_context() does.
  void add(const std::vector<SampleSize>& sizes);
  /// Returns the seconds of one unit: four operations for each hidden unit in 32 layers, three times, at 400 TFLOP/s.
  double unit_seconds() const;
  std::string to_json() const;
  /// Returns a table of the time of a step, and a recommendation.
  std::string to_table(const Style& style = {}) const;
};

}  // namespace levada::report
