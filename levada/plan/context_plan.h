// Assigns the samples of a step to context-parallel groups, whose sizes follow from the samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "levada/plan/context_cost.h"
#include "levada/plan/step_plan.h"

namespace levada {

/// Consecutive ranks that share the samples of a micro-batch: each sequence is cut over all of them.
struct ContextBlock {
  int first = 0, size = 1;                ///< size is a power of two, and first is a multiple of it
  std::vector<std::size_t> samples = {};  ///< indexes, ascending
  bool operator==(const ContextBlock&) const = default;
};

/// A divided step. In each micro-batch, every rank is in exactly one block and no block is empty; every sample is in
/// exactly one block of the step. The blocks of a micro-batch are in the order of their ranks.
struct ContextPlan {
  int ranks = 0;  ///< data-parallel times context-parallel ranks, in the order of the mesh
  std::vector<std::vector<ContextBlock>> micros = {};

  const ContextBlock& at(int rank, int micro) const;
  bool operator==(const ContextPlan&) const = default;
};

struct ContextBalance {
  ContextCost cost = {};
  std::int64_t max_tokens = 0;  ///< limit for one rank in a micro-batch, including the padding of sequences
  int max_cp = 1;               ///< maximum ranks in a block: a power of two that divides the number of ranks
  Wait wait = Wait::micro;
};

ContextBalance context_balance_of(const Balance& balance);

/// Throws InvalidArgument if plan_context() would throw for any samples.
void check_context(int ranks, const ContextBalance& balance);

/// Divides samples of `tokens` positions each. A short sequence stays on one rank. A long one is cut over as many ranks
/// as its length requires, and over more if the other ranks would wait for it. Also tries the divisions with one size
/// for all blocks, and returns the plan with the least step_time(). Deterministic. Throws InvalidArgument: bad options;
/// fewer samples than ranks / max_cp; and, naming the sample by its index, one of more than max_cp * max_tokens.
ContextPlan plan_context(std::span<const std::int64_t> tokens, int ranks, const ContextBalance& balance);

/// Divides samples with the options of a balanced feed. Throws InvalidArgument also for a sample of several segments.
ContextPlan plan_context(std::span<const SampleSize> samples, int ranks, const Balance& balance);

/// Divides samples over blocks of `size` ranks each, as plan_step() does. Throws like plan_context().
ContextPlan plan_static_context(std::span<const std::int64_t> tokens, int ranks, int size,
                                const ContextBalance& balance);

/// Returns the time of a step. With Wait::step, a block waits only for its own ranks, which may come from different
/// blocks; with Wait::micro, all ranks wait in each micro-batch.
std::int64_t step_time(const ContextPlan& plan, std::span<const std::int64_t> tokens, const ContextBalance& balance);

/// Returns the time of a step that is not balanced: each block of `size` ranks takes the same number of samples, in
/// their order, in micro-batches as full as the order allows.
std::int64_t time_in_order(std::span<const std::int64_t> tokens, int ranks, int size, const ContextBalance& balance);

/// Returns the smallest block size, up to max_cp, with which each of the samples fits into a micro-batch.
int smallest_block(std::span<const std::int64_t> tokens, const ContextBalance& balance);

/// Returns a lower bound on step_time() for plans of `num_micro` micro-batches: the mean computing time of a rank, or
/// that of the longest sample on max_cp ranks if it is longer.
std::int64_t context_bound(std::span<const std::int64_t> tokens, int ranks, int num_micro,
                           const ContextBalance& balance);

}  // namespace levada
