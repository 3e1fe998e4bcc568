// Measures how evenly the work of planned steps is divided.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "levada/plan/sample_cost.h"
#include "levada/plan/step_plan.h"

namespace levada {

/// Balance of the plans of some steps, summed over the steps. Work is in the units of their cost. If a model has two
/// parts, work is the worse of the two in the units of the first; the second is scaled so that both have the same
/// bound, as plan_step() does.
struct StepBalance {
  std::int64_t steps = 0, samples = 0, tokens = 0;
  std::int64_t micro_batches = 0;  ///< per rank
  double busiest = 0;              ///< work of the busiest rank
  double unbalanced = 0;           ///< the same if each rank took the same number of samples, in their order
  double bound = 0;                ///< lower bound on `busiest`: work_bound()
  double waiting = 0;              ///< sum over micro-batches of the busiest rank's work: see Wait::micro
  double waiting_bound = 0;        ///< lower bound on `waiting`
  double mean = 0;                 ///< average work of a rank
  std::int64_t delayed = 0;        ///< samples that waited for a later step
  std::int64_t waited = 0;         ///< total number of steps that they waited
  std::int64_t longest_wait = 0;   ///< the longest of those waits, in steps
  std::int64_t padding = 0;        ///< padding among the tokens
  StepBalance& operator+=(const StepBalance& other);
  bool operator==(const StepBalance&) const = default;
};

/// The balance of a run's plans, in order and in bounded memory: every entry covers the same number of steps, which
/// grows with the run.
class BalanceSeries {
 public:
  static constexpr std::size_t max_entries = 512;  ///< even

  /// Adds the next step.
  void add(const StepBalance& step);
  const std::vector<StepBalance>& entries() const { return entries_; }
  StepBalance total() const;

 private:
  std::vector<StepBalance> entries_;
  std::int64_t steps_per_entry_ = 1;
};

/// Returns the work of the busiest of `ranks` if each takes the same number of samples, in their order.
double unbalanced_work(std::span<const SampleSize> samples, int ranks, const SampleCost& cost);

/// Returns the balance of one step that plan_step() divided with these options.
StepBalance balance_of(const StepPlan& plan, std::span<const SampleSize> samples, const Balance& options);

}  // namespace levada
