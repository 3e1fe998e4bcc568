// Steps whose work is divided over ranks before anything is sent.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levada/feed/step_counter.h"
#include "levada/feed/tail.h"
#include "levada/plan/delay_queue.h"
#include "levada/plan/layout.h"
#include "levada/plan/step_balance.h"
#include "levada/plan/step_plan.h"
#include "levada/sources/source.h"

namespace levada {

struct StepOptions {
  int ranks = 1;     ///< number of data-parallel ranks; with Balance::max_cp, of dp x cp ranks
  Layout cuts = {};  ///< how the ranks of a block share a row, for context_part()
  Balance balance = {};
  std::int64_t step_samples = 1;
  std::int64_t first_sample = 0;
  std::vector<DelayedSample> delayed = {};  ///< earlier samples that still wait for a step
  Tail tail = Tail::drop;                   ///< whether a last step that is not full is kept (short_) or dropped
  bool reads_all = false;  ///< whether this rank reads all micro-batches, and announces the next step's samples
};

/// A Source of micro-batches: number round * ranks + r is the share of data-parallel rank r in that round or, with
/// Balance::max_cp, that rank's part of the row that the ranks of its block share. Steps consist of the same samples as
/// without balance, in the order of `samples`, unless long ones are delayed. A step has one round per micro-batch of
/// its plan. All readers compute the same plans, and each reads only the micro-batches requested from it.
class StepSource final : public Source {
 public:
  StepSource(std::shared_ptr<Source> samples, const StepOptions& options)
      : samples_(std::move(samples)),
        options_(options),
        queue_(options.ranks, options.balance.cost, options.balance.max_delay, options.delayed) {
    step_.end_sample = announced_ = options.first_sample;
  }

  /// Plans the next step without reading it. Returns false if there is none. Throws as read() does.
  bool plan_next();
  /// Returns the balance of the steps planned so far. Any thread may call.
  BalanceSeries balance() const;

  /// Returns nothing until the last step has been planned.
  std::optional<std::int64_t> size() const override;
  /// Throws as the samples' gather() does, and InvalidArgument, naming the sample, for a step that cannot be divided.
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override;
  /// Returns a StepCursor if `next` is the end of a step; empty within a step, because a run can only resume between
  /// steps.
  Bytes cursor(std::int64_t next) const override;
  std::optional<MicroBatch> micro_batch(std::int64_t number) const override;
  std::vector<std::pair<std::string, std::string>> identity() const override { return samples_->identity(); }
  bool is_comparable(const Leaf& leaf) const override { return samples_->is_comparable(leaf); }
  std::string difference_remedy() const override { return samples_->difference_remedy(); }
  bool is_by_number() const override { return samples_->is_by_number(); }
  void on_wait(std::function<void()> waiting) override { samples_->on_wait(std::move(waiting)); }
  std::string activity() const override { return samples_->activity(); }
  ReadStats stats() const override { return samples_->stats(); }

 private:
  struct Step {
    std::int64_t number = -1;
    std::int64_t first_round = 0;
    std::int64_t end_sample = 0;        ///< end of the source's samples that are in a step or wait for one
    std::vector<std::int64_t> samples;  ///< sample numbers
    StepPlan plan;
    std::uint64_t division = 0;  ///< hash of the samples in each micro-batch of this step and all earlier ones

    std::int64_t end_round() const { return first_round + plan.num_micro; }
  };

  /// Chooses the samples of the next step, and announces later ones.
  DelayQueue::Step choose();
  /// Divides the step's samples. Throws InvalidArgument, naming them.
  StepPlan divide(const DelayQueue::Step& samples) const;
  Tree gather(int rank, int micro, Memory& memory);

  std::shared_ptr<Source> samples_;
  StepOptions options_;
  DelayQueue queue_;
  std::int64_t announced_;
  /// Work of the busiest rank in the next step if the source's order were kept; empty if it is.
  std::optional<double> unbalanced_;
  Step step_;
  Tree shared_row_;                  ///< the row of the block that was read last
  std::int64_t shared_number_ = -1;  ///< micro-batch of the first rank of that block
  StepTotals shared_totals_;         ///< totals of the row
  StepCounter counter_;
  bool has_checked_row_ = false;  ///< whether a row has been checked for max_cp
  bool ended_ = false;
  mutable std::mutex balance_mutex_;
  BalanceSeries balance_;
};

}  // namespace levada
