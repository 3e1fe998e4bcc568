// Assigns the samples of a step to data-parallel ranks and micro-batches, before anything is sent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levada/plan/context_cost.h"
#include "levada/plan/partition.h"
#include "levada/plan/sample_cost.h"

namespace levada {

/// The order in which a rank runs its micro-batches.
enum class MicroOrder : std::uint8_t {
  as_read,     ///< by their first samples
  long_first,  ///< the costliest first, which hides imbalance best in a pipeline
  paired,      ///< the costliest, the cheapest, the second costliest, ...: neighbors together cost about the same
};

/// Returns "as-read", "long-first" or "paired".
std::string_view to_string(MicroOrder order);
/// Parses the text of to_string(). Throws InvalidArgument.
MicroOrder parse_micro_order(std::string_view word);

/// The point at which data-parallel ranks wait for each other. It determines what the division of a step minimizes.
enum class Wait : std::uint8_t {
  step,   ///< at the end of the step: minimizes the work of the busiest rank
  micro,  ///< in each micro-batch, as with sharded weights or experts: minimizes the sum, over
          ///< micro-batches, of the busiest rank's work
};

/// Returns "step" or "micro".
std::string_view to_string(Wait wait);
/// Parses the text of to_string(). Throws InvalidArgument.
Wait parse_wait(std::string_view word);

/// Options for dividing the samples of a step over ranks.
struct Balance {
  SampleCost cost = {};
  PartSizes sizes = PartSizes::any;        ///< sizes of the ranks' shares, in samples
  std::int64_t max_tokens = 0;             ///< per micro-batch; 0: one micro-batch per rank, whatever its size
  MicroOrder order = MicroOrder::as_read;  ///< with Wait::micro, micro-batches of equal number move together
  Wait wait = Wait::step;
  std::int64_t max_delay = 0;  ///< maximum number of steps that a long sample may wait (DelayQueue); 0: none waits
  /// Maximum number of context-parallel ranks that share a sequence; 1: the cp size of the mesh. Above 1, ranks are the
  /// dp x cp ranks, max_tokens is the limit for one rank, and plan_context() divides the step.
  int max_cp = 1;
  std::string label = {};  ///< identifies the caller's functions and options for sizes and weights, for comparison
  bool operator==(const Balance&) const = default;
};

/// Returns "flops(linear=24576,quadratic=1), free counts, at most 8192 tokens, as-read", with ", ranks wait in each
/// micro-batch", ", delayed up to 16 steps", ", sequences on up to 8 ranks" and the label added if they apply.
std::string to_string(const Balance& balance);

/// Throws InvalidArgument if plan_step() would throw for any samples.
void check_balance(const Balance& balance);

/// Returns the context-parallel times for a cost by flops. Times other than linear and quadratic are the defaults
/// scaled inversely with cost.linear, because the unit of time grows with the hidden size.
ContextCost context_cost_of(const SampleCost& cost);

/// A divided step. Every sample is in exactly one micro-batch of one rank, or of the ranks of one block, and no
/// micro-batch is empty.
struct StepPlan {
  int ranks = 0, num_micro = 0;                       ///< num_micro per rank
  std::vector<std::vector<std::size_t>> micros = {};  ///< by rank, then micro-batch: indexes of samples, ascending
  std::vector<int> cp_sizes = {};  ///< likewise, the ranks that share the micro-batch; empty if each has its own

  const std::vector<std::size_t>& at(int rank, int micro) const { return micros[index(rank, micro)]; }
  /// Returns the number of ranks that share a micro-batch. They are aligned: the first is a multiple of it.
  int cp_size_at(int rank, int micro) const { return cp_sizes.empty() ? 1 : cp_sizes[index(rank, micro)]; }
  bool operator==(const StepPlan&) const = default;

 private:
  std::size_t index(int rank, int micro) const {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(num_micro) + static_cast<std::size_t>(micro);
  }
};

/// Divides samples over ranks so that the time that ranks wait for each other is close to the minimum (Wait). Uses as
/// few micro-batches as max_tokens allows, the same number on each rank. With Wait::step, the micro-batches of a rank
/// also cost about the same. Deterministic. Throws InvalidArgument: a negative max_tokens; equal counts with
/// Wait::micro and max_tokens; and, naming the sample by its index, fewer samples than ranks, a sample of more than
/// max_tokens, or work that is negative or too large; with max_cp, as plan_context() does, and for a sample of several
/// segments.
StepPlan plan_step(std::span<const SampleSize> samples, int ranks, const Balance& balance);

}  // namespace levada
