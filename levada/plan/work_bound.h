// Lower bounds on the work of the busiest rank of a step, and on the work that ranks wait for.
#pragma once

#include <cstdint>
#include <span>

#include "levada/plan/partition.h"

namespace levada {

/// Returns a / b, rounded up. Requires that a is 0 or more and b positive.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0);
}

/// Returns the number of tokens that fit on a rank in `num_micro` micro-batches of at most max_tokens, capped at 2^62.
std::int64_t tokens_of_rank(std::int64_t max_tokens, std::int64_t num_micro);

/// Returns a lower bound on the work of the busiest of `ranks` in any division with at most max_of_rank tokens on each
/// rank. It is the largest of: the mean work of a rank; the work of the costliest sample; and the mean work of the
/// ranks that hold the costliest samples, which must also hold the tokens that do not fit on the other ranks. `part`
/// selects one of the two kinds of work. Returns an unspecified number if no such division exists. Requires that works
/// and tokens are 0 or more, and that the sum of each is less than 2^62.
std::int64_t work_bound(std::span<const Demand> demands, std::int64_t Work::*part, std::int64_t ranks,
                        std::int64_t max_of_rank);

/// Returns a lower bound on the sum over micro-batches of the busiest rank's work, in any division into micro-batches
/// of at most max_tokens. It is the larger of: the mean work of a rank; and the work of the costliest sample plus the
/// mean work of the samples that do not fit into its micro-batch. Same requirements as work_bound().
std::int64_t waiting_bound(std::span<const Demand> demands, std::int64_t Work::*part, std::int64_t ranks,
                           std::int64_t max_tokens);

}  // namespace levada
