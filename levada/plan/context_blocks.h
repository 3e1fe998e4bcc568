// Blocks of context-parallel ranks that fill one micro-batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "levada/plan/context_plan.h"

namespace levada {

__extension__ using WideSum = __int128;  ///< a sum of times

/// The time of a sample on blocks that have no room for it.
inline constexpr std::int64_t does_not_fit = std::numeric_limits<std::int64_t>::max();

/// The time of each sample on blocks of 1, 2, 4, ... ranks.
class SampleTimes {
 public:
  SampleTimes(std::span<const std::int64_t> tokens, const ContextBalance& balance);

  std::size_t num_sizes() const { return num_sizes_; }
  /// Returns the time on a block of 2^exponent ranks, or does_not_fit.
  std::int64_t at(std::size_t sample, std::size_t exponent) const { return times_[sample * num_sizes_ + exponent]; }
  /// Returns the exponent of the smallest block on which a sample takes at most `limit` or, if there is none, of the
  /// block on which it takes the least time.
  std::size_t smallest_within(std::size_t sample, std::int64_t limit) const;
  /// Returns the sum of time times ranks over the samples, each on the smallest block on which it takes at most
  /// `limit`.
  WideSum total(std::span<const std::size_t> samples, std::int64_t limit) const;

 private:
  std::size_t num_sizes_;
  std::vector<std::int64_t> times_;         ///< by sample, then size
  std::vector<std::size_t> min_exponents_;  ///< by sample, the exponent of the smallest block that has room
};

/// A block that is being filled.
struct OpenBlock {
  std::size_t exponent = 0;
  std::int64_t time = 0, tokens = 0;
  std::vector<std::size_t> samples = {};

  int size() const { return 1 << exponent; }
};

/// The samples of a step, and the capacity of its ranks.
struct StepSamples {
  std::span<const std::int64_t> tokens;  ///< the longest first
  const SampleTimes& times;
  int ranks = 1;
  std::int64_t max_tokens = 0;
};

/// Fills one micro-batch of all ranks with blocks that take at most `limit` if possible, the largest first. Takes
/// samples from `left`, which is ascending, and leaves at least `kept`. Returns nothing, and takes nothing, if a rank
/// would have none.
std::optional<std::vector<OpenBlock>> fill_micro(const StepSamples& step, std::int64_t limit,
                                                 std::vector<std::size_t>& left, std::size_t kept);

}  // namespace levada
