// The time that a sequence takes on one or several context-parallel ranks.
#pragma once

#include <cstdint>
#include <span>

#include "levada/plan/sample_cost.h"

namespace levada {

/// Times of a training step with ring attention (H. Liu et al., "Ring Attention with Blockwise Transformers for
/// Near-Infinite Context", 2023), in the unit of SampleCost::Kind::flops: the time of four operations for each hidden
/// unit, in each layer, forward and backward. The defaults describe 32 layers of hidden size 4096 with 8 heads of keys
/// and values, at 400 TFLOP/s, 300 GB/s within a host and 40 GB/s between hosts; a unit is then 3.9 ns.
struct ContextCost {
  std::int64_t linear = 24576, quadratic = 1;  ///< a sequence of L positions takes linear * L + quadratic * L * L
  std::int64_t exchange_in_host = 333;         ///< sending the keys and values of a position to a rank of the host
  std::int64_t exchange_between = 2500;        ///< the same between hosts
  std::int64_t hop = 490'000;                  ///< fixed time of each step of the ring
  std::int64_t start = 5'100'000;              ///< fixed time of a micro-batch
  int ranks_per_host = 8;                      ///< consecutive ranks, within which a block stays on a host
  bool operator==(const ContextCost&) const = default;
};

/// Maximum of each of these times.
constexpr std::int64_t max_context_cost = std::int64_t{1} << 32;

/// Returns the positions of a sequence that `size` ranks share: the next multiple of 2 * size, since each rank has two
/// chunks of equal length (zigzag); with one rank, the sequence's own.
constexpr std::int64_t padded_for(std::int64_t tokens, int size) {
  const std::int64_t multiple = size == 1 ? 1 : 2 * std::int64_t{size};
  return (tokens + multiple - 1) / multiple * multiple;
}

/// Returns the time that one sequence takes on each of `size` ranks. Communication and attention overlap, so the longer
/// of the two counts. Throws InvalidArgument if it does not fit in 62 bits.
std::int64_t sequence_time(std::int64_t tokens, int size, const ContextCost& cost);

/// Returns the time of a micro-batch of these sequences on each of `size` ranks. Throws like sequence_time().
std::int64_t micro_time(std::span<const std::int64_t> tokens, int size, const ContextCost& cost);

}  // namespace levada
