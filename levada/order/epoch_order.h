// The order in which items are drawn, epoch after epoch.
#pragma once

#include <cstdint>
#include <optional>

#include "levada/order/permutation.h"

namespace levada {

/// Maps draws, counted over all epochs, to `size` items: in stored order or, with a seed, in a different order each
/// epoch. Constant time as long as calls stay in an epoch. One thread at a time.
class EpochOrder {
 public:
  /// `size`: as for Permutation.
  EpochOrder(std::int64_t size, std::optional<std::uint64_t> seed) : size_(size), seed_(seed) {}

  std::int64_t at(std::int64_t draw) {
    const auto place = draw % size_;
    if (!seed_) return place;
    if (epoch_ != draw / size_) {
      epoch_ = draw / size_;
      permutation_.emplace(size_, *seed_, static_cast<std::uint64_t>(epoch_));
    }
    return (*permutation_)(place);
  }

 private:
  std::int64_t size_;
  std::optional<std::uint64_t> seed_;
  std::optional<Permutation> permutation_;  ///< permutation for epoch_
  std::int64_t epoch_ = -1;
};

}  // namespace levada
