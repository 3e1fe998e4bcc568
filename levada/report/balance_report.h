// How the work of steps is divided over data-parallel ranks: of a feed that ran, or as `levada plan` predicts it.
#pragma once

#include <string>

#include "levada/plan/step_balance.h"
#include "levada/plan/step_plan.h"
#include "levada/report/style.h"

namespace levada::report {

struct BalanceReport {
  Balance by = {};
  int ranks = 1;              ///< data-parallel
  BalanceSeries series = {};  ///< of all steps that were planned

  /// Work of the busiest rank, by the least that the busiest one can have: 1 at best. 1 without steps.
  double busiest() const;
  /// The same, if each rank took as many samples as any other, in their order.
  double unbalanced() const;
  /// The time of a step in which ranks wait for each other in each micro-batch, by the least that it can take, where
  /// work alone decides. 1 without steps.
  double waiting() const;
  /// Share of the micro-batches' max_tokens that no sample fills. 0 without micro-batches.
  double unused() const;

  /// One JSON object: sums over all steps, and under "series" the same of runs of steps in order.
  std::string to_json() const;
  /// One sentence.
  std::string to_text() const;
  /// Returns the report before a run: a table of sums per step, and what they mean.
  std::string to_table(const Style& style = {}) const;
};

}  // namespace levada::report
