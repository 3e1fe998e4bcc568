#include "levada/order/weighted_order.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "levada/base/error.h"
#include "levada/order/permutation.h"

namespace levada {
namespace {

constexpr auto all = std::numeric_limits<std::uint64_t>::max();

std::uint64_t of_all(double share) {
  const double scaled = std::ldexp(share, 64);
  return scaled >= std::ldexp(1.0, 64) ? all : static_cast<std::uint64_t>(scaled);
}

double sum_of(std::span<const double> weights) {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] < 0) {
      throw InvalidArgument(
          fmt::format("the weight of item {} is {}; weights must be finite and not negative", i, weights[i]));
    }
    sum += weights[i];
  }
  if (!(sum > 0) || !std::isfinite(sum)) {
    throw InvalidArgument(fmt::format("the weights sum to {}; the sum must be positive and finite", sum));
  }
  return sum;
}

}  // namespace

WeightedOrder::WeightedOrder(std::span<const double> weights) : columns_(weights.size()) {
  const double mean = sum_of(weights) / static_cast<double>(weights.size());
  std::vector<double> left(weights.size());
  std::vector<std::size_t> small, large;
  std::size_t heaviest = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    left[i] = weights[i] / mean;
    (left[i] < 1 ? small : large).push_back(i);
    if (weights[i] > weights[heaviest]) heaviest = i;
  }
  while (!small.empty() && !large.empty()) {
    const auto filled = small.back(), from = large.back();
    small.pop_back();
    columns_[filled] = {of_all(left[filled]), static_cast<std::int64_t>(from)};
    left[from] -= 1 - left[filled];
    if (left[from] < 1) {
      large.pop_back();
      small.push_back(from);
    }
  }
  for (const auto i : large) columns_[i] = {all, static_cast<std::int64_t>(i)};
  // Because of rounding, these remain at about 1, unless the weight is 0.
  for (const auto i : small) columns_[i] = {weights[i] > 0 ? all : 0, static_cast<std::int64_t>(heaviest)};
}

std::int64_t WeightedOrder::at(std::uint64_t random) const {
  __extension__ using Product = unsigned __int128;
  const auto column = static_cast<std::size_t>(Product{random} * columns_.size() >> 64);
  const auto& [own, other] = columns_[column];
  return derived_seed(random, 1) < own ? static_cast<std::int64_t>(column) : other;
}

}  // namespace levada
