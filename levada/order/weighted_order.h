// Draws with replacement, in proportion to weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace levada {

/// Maps a random number to one of `weights.size()` things, each with a probability in proportion to its weight: the
/// alias method (A. Walker, "An efficient method for generating discrete random variables with general distributions",
/// 1977). Constant time, 16 bytes a thing, the same on every platform with IEEE arithmetic. A value.
class WeightedOrder {
 public:
  /// Throws InvalidArgument unless the weights are finite and not negative, and one is positive.
  explicit WeightedOrder(std::span<const double> weights);

  /// Returns the thing that `random`, evenly distributed over all 64-bit numbers, draws.
  std::int64_t at(std::uint64_t random) const;

 private:
  struct Column {
    std::uint64_t own = 0;  ///< below this, of 2^64, the column is its own thing
    std::int64_t other = 0;
  };
  std::vector<Column> columns_;
};

}  // namespace levada
