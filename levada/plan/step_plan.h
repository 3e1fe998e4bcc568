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

/// Where data-parallel ranks wait for each other, and so what the division of a step makes small.
enum class Wait : std::uint8_t {
  step,   ///< at its end: the work of the busiest rank
  micro,  ///< in each micro-batch, as with sharded weights or experts: the sum over micro-batches of the work of the
          ///< rank that has most in it
};

/// "step", "micro".
std::string_view to_string(Wait wait);
/// The inverse of to_string(). Throws InvalidArgument.
Wait parse_wait(std::string_view word);

/// How the samples of a step are divided over ranks.
struct Balance {
  SampleCost cost = {};
  PartSizes sizes = PartSizes::any;        ///< of the ranks, in samples
  std::int64_t max_tokens = 0;             ///< of a micro-batch; 0: a rank has one, whatever its size
  MicroOrder order = MicroOrder::as_read;  ///< with Wait::micro all ranks' micro-batches of one number move together
  Wait wait = Wait::step;
  std::int64_t max_delay = 0;  ///< steps that a sample longer than the others may wait (DelayQueue); 0: none waits
  std::string label = {};      ///< names the caller's functions and options behind sizes and weights, for comparison
  bool operator==(const Balance&) const = default;
};

/// "flops(linear=24576,quadratic=1), free counts, at most 8192 tokens, as-read"; perhaps ", ranks wait in each
/// micro-batch", ", delayed up to 16 steps", and the label.
std::string to_string(const Balance& balance);

/// Throws InvalidArgument where plan_step() would, whatever the samples.
void check_balance(const Balance& balance);

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

/// Divides samples over ranks so that those wait for each other little more than they must (Wait), and over as few
/// micro-batches as max_tokens allows, the same number on each rank; with Wait::step those of a rank cost about the
/// same, too. Deterministic: the same everywhere for the same samples. Throws InvalidArgument: a negative max_tokens;
/// equal counts with Wait::micro and max_tokens; and, naming the sample by its index, fewer samples than ranks, a
/// sample of more than max_tokens, or work that is negative or too large.
StepPlan plan_step(std::span<const SampleSize> samples, int ranks, const Balance& balance);

}  // namespace levada
