// Steps whose work is divided over ranks before anything is sent.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levada/feed/tail.h"
#include "levada/plan/delay_queue.h"
#include "levada/plan/step_balance.h"
#include "levada/plan/step_plan.h"
#include "levada/sources/source.h"

namespace levada {

struct StepOptions {
  int ranks = 1;  ///< data-parallel
  Balance balance = {};
  std::int64_t step_samples = 1;
  std::int64_t first_sample = 0;
  std::vector<DelayedSample> delayed = {};  ///< samples before that, which wait for a later step
  Tail tail = Tail::drop;  ///< what becomes of a last step that is not full: it is kept (short_) or dropped
  bool reads_all = false;  ///< all micro-batches are read here, so that the next step is announced ahead
};

/// A Source of micro-batches: number round * ranks + r is what data-parallel rank r gets of a step in that round. Steps
/// consist of the same samples as without balance, unless long ones are delayed, in the order of `samples`; a step has
/// one round, or as many as its plan has micro-batches. Any reader makes the same plans, and reads only what it is
/// asked for.
class StepSource final : public Source {
 public:
  StepSource(std::shared_ptr<Source> samples, const StepOptions& options)
      : samples_(std::move(samples)),
        options_(options),
        queue_(options.ranks, options.balance.cost, options.balance.max_delay, options.delayed) {
    step_.end_sample = announced_ = options.first_sample;
  }

  /// Plans the next step without reading it; returns false behind the last. Throws as read() does.
  bool plan_next();
  /// What the steps planned so far come to. Any thread.
  BalanceSeries balance() const;

  /// Known once the last step has been planned.
  std::optional<std::int64_t> size() const override;
  /// Throws as the samples' gather() does, and InvalidArgument for a step that cannot be divided, naming the sample.
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override;
  /// A StepCursor behind the step that `next` is behind the last round of; empty within a step, which is gone through
  /// whole or not at all.
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
    std::int64_t end_sample = 0;        ///< behind those of the source that are in a step, or wait
    std::vector<std::int64_t> samples;  ///< numbers
    StepPlan plan;
    std::uint64_t division = 0;  ///< a hash of the samples of each micro-batch, of this step and those before

    std::int64_t end_round() const { return first_round + plan.num_micro; }
  };

  /// The samples of the next step, and what there is before it.
  DelayQueue::Step choose();
  /// Divides them. Throws InvalidArgument, naming the samples.
  StepPlan divide(const DelayQueue::Step& samples) const;

  std::shared_ptr<Source> samples_;
  StepOptions options_;
  DelayQueue queue_;
  std::int64_t announced_;
  std::optional<double> unbalanced_;  ///< work of the busiest rank, had the source's order been kept
  Step step_;
  bool ended_ = false;
  mutable std::mutex balance_mutex_;
  BalanceSeries balance_;
};

}  // namespace levada
