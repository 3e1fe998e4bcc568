// Long samples that wait for a step in which there are others like them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "levada/plan/sample_cost.h"

namespace levada {

struct DelayedSample {
  std::int64_t number = 0;
  std::int64_t waited = 0;  ///< steps that took samples behind it
  SampleSize size = {};
  bool operator==(const DelayedSample&) const = default;
};

/// Chooses the samples of each step from a stream of samples. One sample whose work is more than the mean of the ranks
/// makes the whole step long, while the other ranks wait. It is set aside until as many samples of its kind have come
/// as there are ranks, and then each rank has one. A kind is work within a factor of two. No more samples wait than a
/// step holds, so that all of them can be due at once. (Z. Wang et al., "WLB-LLM:
/// Workload-Balanced 4D Parallelism for Large Language Model Training", 2025, has such queues by length.) A value;
/// the same choices everywhere for the same samples.
class DelayQueue {
 public:
  struct Step {
    std::vector<std::int64_t> numbers;  ///< ascending
    std::vector<SampleSize> sizes;      ///< of these
    std::int64_t taken = 0;             ///< samples of the stream that are in the step, or wait now
    std::int64_t delayed = 0;           ///< samples in the step that have waited,
    std::int64_t waited = 0;            ///< how many steps together,
    std::int64_t longest_wait = 0;      ///< and at most
  };

  /// `max_delay`: steps that a sample waits at most. `waiting`: those of an earlier run.
  DelayQueue(int ranks, const SampleCost& cost, std::int64_t max_delay, std::vector<DelayedSample> waiting = {})
      : ranks_(ranks), cost_(cost), max_delay_(max_delay), waiting_(std::move(waiting)) {}

  /// The next step of `count` samples, fewer only at the end of the stream. `next`: the sizes of the samples of the
  /// stream from number `first` on, 2 * count of them, fewer only at its end. Throws as SampleCost::of() does.
  Step choose(std::int64_t first, std::span<const SampleSize> next, std::int64_t count);

  /// In the order in which they were set aside.
  const std::vector<DelayedSample>& waiting() const { return waiting_; }

 private:
  double work_of(const SampleSize& size) const;
  /// Work up to which samples that wait are due now: as many as ranks have come together, or one has waited for long.
  double due() const;
  /// Moves those with work of at most `limit` into the step, the oldest first, as long as it is not full.
  void release(double limit, std::int64_t count, Step& step);

  int ranks_;
  SampleCost cost_;
  std::int64_t max_delay_;
  std::vector<DelayedSample> waiting_;
};

}  // namespace levada
