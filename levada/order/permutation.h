// A shuffled order of N items that is computed from a key instead of being stored.
#pragma once

#include <array>
#include <cstdint>

namespace levada {

/// Returns an independent seed for each use of `seed`, numbered by `stream`.
std::uint64_t derived_seed(std::uint64_t seed, std::uint64_t stream);

/// A bijection of [0, size) onto itself, the same on every platform for a seed and an epoch, in constant memory. A
/// Feistel network over the next power of four, walked until it returns to the range (J. Black, P. Rogaway, "Ciphers
/// with arbitrary finite domains", 2002), with the finalizer of SplitMix64 as its round function (G. Steele, D. Lea, C.
/// Flood, "Fast splittable pseudorandom number generators", 2014). For shuffling, not for cryptography. A value type.
class Permutation {
 public:
  /// Identifies the order in cursors. Must change with the algorithm.
  static constexpr int version = 1;

  /// `size`: 1 to 2^62.
  Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch);

  std::int64_t size() const { return size_; }
  /// Returns the element at `index` of the new order. Requires an index in [0, size).
  std::int64_t operator()(std::int64_t index) const;

 private:
  static constexpr int rounds = 8;

  std::uint64_t forward(std::uint64_t value) const;

  std::int64_t size_;
  unsigned half_bits_;
  std::array<std::uint64_t, rounds> keys_;
};

}  // namespace levada
