// The least work that the busiest rank of a step can have, and the least that ranks can wait for.
#pragma once

#include <cstdint>
#include <span>

#include "levada/plan/partition.h"

namespace levada {

/// Returns a / b, rounded up. Requires that a is 0 or more and b positive.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0);
}

/// Returns how many tokens a rank can have in `num_micro` micro-batches of at most max_tokens: at most 2^62.
std::int64_t tokens_of_rank(std::int64_t max_tokens, std::int64_t num_micro);

/// Returns work that the busiest of `ranks` has in any division in which no rank has more than max_of_rank tokens. It
/// is the largest of the mean, the costliest sample, and the mean of the ranks that have the costliest samples: those
/// ranks also have the tokens for which all others have no room. `part` says which of the two kinds of work is meant.
/// Returns an unspecified number where no such division exists. Requires that works and tokens are 0 or more, and that
/// the sum of each is less than 2^62.
std::int64_t work_bound(std::span<const Demand> demands, std::int64_t Work::*part, std::int64_t ranks,
                        std::int64_t max_of_rank);

/// Returns a number that the sum over micro-batches of the work of the rank that has most in it is not below, in any
/// division into micro-batches of at most max_tokens: the mean of the ranks, or the costliest sample and the mean of
/// all for which there is no room in its micro-batch. Requires what work_bound() does.
std::int64_t waiting_bound(std::span<const Demand> demands, std::int64_t Work::*part, std::int64_t ranks,
                           std::int64_t max_tokens);

}  // namespace levada
