// A queue in which long samples wait for a step with others like them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "levada/plan/sample_cost.h"

namespace levada {

struct DelayedSample {
  std::int64_t number = 0;
  std::int64_t waited = 0;  ///< steps chosen since it was set aside
  SampleSize size = {};
  bool operator==(const DelayedSample&) const = default;
};

/// Chooses the samples of each step from a stream of samples. A single sample with more work than the mean work of a
/// rank makes the whole step long, while the other ranks wait. The queue sets such a sample aside until it holds one of
/// that kind for each rank, or until it has waited for max_delay steps, and then releases them together. Samples are of
/// one kind if their work is within the same power of two. At most a step's number of samples wait, so that all of them
/// can be released in one step. (Z. Wang et al., "WLB-LLM: Workload-Balanced 4D Parallelism for Large Language Model
/// Training", 2025, uses such queues by length.) A value type. Deterministic.
class DelayQueue {
 public:
  struct Step {
    std::vector<std::int64_t> numbers;  ///< ascending
    std::vector<SampleSize> sizes;      ///< by position in `numbers`
    std::int64_t taken = 0;             ///< samples of the stream that are now in the step or waiting
    std::int64_t delayed = 0;           ///< samples in the step that have waited
    std::int64_t waited = 0;            ///< total number of steps that they waited
    std::int64_t longest_wait = 0;      ///< the longest of those waits, in steps
  };

  /// `max_delay`: maximum number of steps that a sample waits. `waiting`: samples left over from an earlier run.
  DelayQueue(int ranks, const SampleCost& cost, std::int64_t max_delay, std::vector<DelayedSample> waiting = {})
      : ranks_(ranks), cost_(cost), max_delay_(max_delay), waiting_(std::move(waiting)) {}

  /// Returns the next step of `count` samples, fewer only at the end of the stream. `next`: the sizes of the stream's
  /// samples from number `first` on; must have 2 * count entries unless the stream ends. Throws as SampleCost::of()
  /// does.
  Step choose(std::int64_t first, std::span<const SampleSize> next, std::int64_t count);

  /// Returns the waiting samples in the order in which they were set aside.
  const std::vector<DelayedSample>& waiting() const { return waiting_; }

 private:
  double work_of(const SampleSize& size) const;
  /// Returns the work up to which waiting samples are due now, because there is one of their kind for each rank or one
  /// has waited for max_delay steps.
  double due() const;
  /// Moves waiting samples with work of at most `limit` into the step, the oldest first, until it is full.
  void release(double limit, std::int64_t count, Step& step);

  int ranks_;
  SampleCost cost_;
  std::int64_t max_delay_;
  std::vector<DelayedSample> waiting_;
};

}  // namespace levada
