// The order in which things are drawn epoch after epoch.
#pragma once

#include <cstdint>
#include <optional>

#include "levada/order/permutation.h"

namespace levada {

/// Maps draws, counted over all epochs, to `size` things: in their order, or with a seed in another order each epoch.
/// Constant time while calls stay in an epoch. One thread at a time.
class EpochOrder {
 public:
  /// `size` as Permutation takes it.
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
  std::optional<Permutation> permutation_;  ///< of epoch_
  std::int64_t epoch_ = -1;
};

}  // namespace levada
