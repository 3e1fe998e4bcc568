// An order of N things that a key picks, and that nobody has to remember.
#pragma once

#include <array>
#include <cstdint>

namespace levada {

/// A seed of its own for each use, numbered `stream`, that one seed is put to.
std::uint64_t derived_seed(std::uint64_t seed, std::uint64_t stream);

/// A bijection of [0, size) onto itself, the same on every platform for a seed and an epoch, in constant memory. A
/// Feistel network over the next power of four, walked until it comes back into the range (J. Black, P. Rogaway,
/// "Ciphers with arbitrary finite domains", 2002), its round function the finalizer of SplitMix64 (G. Steele, D. Lea,
/// C. Flood, "Fast splittable pseudorandom number generators", 2014). For shuffling, not for secrets. A value.
class Permutation {
 public:
  /// Names the order in cursors: to be changed with the algorithm.
  static constexpr int version = 1;

  /// `size` at least 1 and at most 2^62.
  Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch);

  std::int64_t size() const { return size_; }
  /// Returns the element at `index` of the new order; index in [0, size).
  std::int64_t operator()(std::int64_t index) const;

 private:
  static constexpr int rounds = 8;

  std::uint64_t forward(std::uint64_t value) const;

  std::int64_t size_;
  unsigned half_bits_;
  std::array<std::uint64_t, rounds> keys_;
};

}  // namespace levada
