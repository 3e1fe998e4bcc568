// How evenly the work of planned steps is divided.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "levada/plan/sample_cost.h"
#include "levada/plan/step_plan.h"

namespace levada {

/// What the plans of some steps come to, summed over the steps. Work is in the units of their cost. Where a model has
/// two parts, work is the worse of the two, in the units of the first: the second is scaled so that their bounds are
/// equal, as plan_step() compares them.
struct StepBalance {
  std::int64_t steps = 0, samples = 0, tokens = 0;
  std::int64_t micro_batches = 0;  ///< of each rank
  double busiest = 0;              ///< work of the busiest rank
  double unbalanced = 0;           ///< the same, if each rank took as many samples as any other, in their order
  double bound = 0;                ///< the least that the busiest rank can have: work_bound()
  double waiting = 0;              ///< over micro-batches, the work of the rank that has most in it: see Wait::micro
  double waiting_bound = 0;        ///< the least that this can be
  double mean = 0;                 ///< work of a rank on average
  std::int64_t delayed = 0;        ///< samples that waited for a later step than theirs,
  std::int64_t waited = 0;         ///< how many steps together,
  std::int64_t longest_wait = 0;   ///< and at most
  std::int64_t padding = 0;        ///< of the tokens
  StepBalance& operator+=(const StepBalance& other);
  bool operator==(const StepBalance&) const = default;
};

/// What the plans of a run come to, in order, in bounded memory: entries of as many steps each, more the longer the
/// run.
class BalanceSeries {
 public:
  static constexpr std::size_t max_entries = 512;  ///< even

  /// `step`: of the next one.
  void add(const StepBalance& step);
  const std::vector<StepBalance>& entries() const { return entries_; }
  StepBalance total() const;

 private:
  std::vector<StepBalance> entries_;
  std::int64_t steps_per_entry_ = 1;
};

/// Work of the busiest of `ranks` if each takes as many samples as any other, in their order.
double unbalanced_work(std::span<const SampleSize> samples, int ranks, const SampleCost& cost);

/// Returns what one step comes to that plan_step() divided with these options.
StepBalance balance_of(const StepPlan& plan, std::span<const SampleSize> samples, const Balance& options);

}  // namespace levada
