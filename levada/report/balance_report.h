// The division of the steps' work among data-parallel ranks: measured in a feed, or predicted by `levada plan`.
#pragma once

#include <string>

#include "levada/plan/step_balance.h"
#include "levada/plan/step_plan.h"
#include "levada/report/style.h"

namespace levada::report {

struct BalanceReport {
  Balance by = {};
  int ranks = 1;              ///< number of data-parallel ranks
  BalanceSeries series = {};  ///< balance of all planned steps

  /// Returns the work of the busiest rank relative to its lower bound: 1 at best, and 1 without steps.
  double busiest() const;
  /// Returns the same ratio if each rank took the same number of samples, in order.
  double unbalanced() const;
  /// Returns the time of a step in which ranks wait for each other in each micro-batch, relative to its lower bound, if
  /// only work matters. 1 without steps.
  double waiting() const;
  /// Returns the share of the micro-batches' max_tokens that no sample fills. 0 without micro-batches.
  double unused() const;

  /// Returns one JSON object: sums over all steps, and under "series" the sums over consecutive ranges of steps.
  std::string to_json() const;
  /// Returns one sentence.
  std::string to_text() const;
  /// Returns the report before a run: a table of sums per step, and an explanation.
  std::string to_table(const Style& style = {}) const;
};

}  // namespace levada::report
