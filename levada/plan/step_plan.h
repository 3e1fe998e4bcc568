// Which samples of a step each data-parallel rank gets, and in which micro-batch: decided before anything is sent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levada/plan/partition.h"
#include "levada/plan/sample_cost.h"

namespace levada {

/// In which order a rank runs its micro-batches.
enum class MicroOrder : std::uint8_t {
  as_read,     ///< by their first samples
  long_first,  ///< the costliest first, which hides best in a pipeline what the others lack
  paired,      ///< the costliest, the cheapest, the second costliest, ...: neighbors cost about the same together
};

/// "as-read", "long-first", "paired".
std::string_view to_string(MicroOrder order);
/// The inverse of to_string(). Throws InvalidArgument.
MicroOrder parse_micro_order(std::string_view word);

/// How the samples of a step are divided over ranks.
struct Balance {
  SampleCost cost = {};
  PartSizes sizes = PartSizes::any;  ///< of the ranks, in samples
  std::int64_t max_tokens = 0;       ///< of a micro-batch; 0: a rank has one, whatever its size
  MicroOrder order = MicroOrder::as_read;
  std::int64_t max_delay = 0;  ///< steps that a sample longer than the others may wait (DelayQueue); 0: none waits
  std::string label = {};      ///< names the caller's functions and options behind sizes and weights, for comparison
  bool operator==(const Balance&) const = default;
};

/// "flops(linear=24576,quadratic=1), free counts, at most 8192 tokens, as-read"; perhaps ", delayed up to 16 steps",
/// and the label.
std::string to_string(const Balance& balance);

/// A step, divided. Every sample is in exactly one micro-batch, and no micro-batch is empty.
struct StepPlan {
  int ranks = 0, num_micro = 0;                       ///< num_micro of each rank
  std::vector<std::vector<std::size_t>> micros = {};  ///< by rank, then micro-batch: indexes of samples, ascending

  const std::vector<std::size_t>& at(int rank, int micro) const {
    return micros[static_cast<std::size_t>(rank) * static_cast<std::size_t>(num_micro) +
                  static_cast<std::size_t>(micro)];
  }
  bool operator==(const StepPlan&) const = default;
};

/// What the plans of some steps come to, summed over the steps. Work is in the units of their cost. Where a model has
/// two parts, work is the worse of the two, in the units of the first: the second is scaled so that their bounds are
/// equal, as plan_step() compares them.
struct StepBalance {
  std::int64_t steps = 0, samples = 0, tokens = 0;
  std::int64_t micro_batches = 0;  ///< of each rank
  double busiest = 0;              ///< work of the busiest rank
  double unbalanced = 0;           ///< the same, if each rank took as many samples as any other, in their order
  double bound = 0;                ///< no busiest rank can have less: the mean, or the costliest sample
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

/// Divides samples over ranks so that the busiest has little more work than it must, and over as few micro-batches as
/// max_tokens allows, the same number on each rank, which cost about the same, too. Deterministic: the same everywhere
/// for the same samples. Throws InvalidArgument, naming the sample by its index: fewer samples than ranks; a sample of
/// more than max_tokens; work that is negative or too large.
StepPlan plan_step(std::span<const SampleSize> samples, int ranks, const Balance& balance);

/// Work of the busiest of `ranks` if each takes as many samples as any other, in their order.
double unbalanced_work(std::span<const SampleSize> samples, int ranks, const SampleCost& cost);

StepBalance balance_of(const StepPlan& plan, std::span<const SampleSize> samples, const SampleCost& cost);

}  // namespace levada
