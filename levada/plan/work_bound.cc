#include "levada/plan/work_bound.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

namespace levada {
namespace {

__extension__ using Wide = __int128;

/// The minimum work of samples that make up a given number of tokens.
class CheapestTokens {
 public:
  CheapestTokens(std::span<const Demand> demands, std::int64_t Work::*part) {
    for (const Demand& demand : demands) {
      if (demand.tokens > 0) items_.push_back({demand.work.*part, demand.tokens});
    }
    std::ranges::sort(items_,
                      [](const Item& a, const Item& b) { return Wide{a.work} * b.tokens < Wide{b.work} * a.tokens; });
    Item sum;
    for (const Item& item : items_) {
      sum.work += item.work;
      sum.tokens += item.tokens;
      sums_.push_back(sum);
    }
  }

  /// Requires that all samples together have at least `tokens`. A part of a sample counts in proportion, rounded down.
  std::int64_t work_of(std::int64_t tokens) const {
    const auto at = std::ranges::lower_bound(sums_, tokens, {}, &Item::tokens) - sums_.begin();
    const auto& last = items_[static_cast<std::size_t>(at)];
    const auto& sum = sums_[static_cast<std::size_t>(at)];
    const auto used = tokens - (sum.tokens - last.tokens);
    return sum.work - last.work + static_cast<std::int64_t>(Wide{last.work} * used / last.tokens);
  }

 private:
  struct Item {
    std::int64_t work = 0, tokens = 0;
  };
  std::vector<Item> items_, sums_;
};

struct Totals {
  std::int64_t work = 0, tokens = 0;
  std::int64_t max_sample_work = 0;  ///< work of the costliest sample
};

Totals totals_of(std::span<const Demand> demands, std::int64_t Work::*part) {
  Totals totals;
  for (const Demand& demand : demands) {
    totals.work += demand.work.*part;
    totals.tokens += demand.tokens;
    totals.max_sample_work = std::max(totals.max_sample_work, demand.work.*part);
  }
  return totals;
}

/// Limit on the costliest samples to consider, which bounds the time for all their divisions over ranks.
constexpr std::int64_t max_costliest = 64;

}  // namespace

std::int64_t tokens_of_rank(std::int64_t max_tokens, std::int64_t num_micro) {
  constexpr std::int64_t limit = std::int64_t{1} << 62;
  std::int64_t tokens = 0;
  return __builtin_mul_overflow(max_tokens, num_micro, &tokens) ? limit : std::min(tokens, limit);
}

std::int64_t work_bound(std::span<const Demand> demands, std::int64_t Work::*part, std::int64_t ranks,
                        std::int64_t max_of_rank) {
  const auto [work, tokens, max_sample_work] = totals_of(demands, part);
  auto bound = std::max(ceil_div(work, ranks), max_sample_work);
  // All tokens fit on the other ranks, so the mean of several samples is below the costliest one.
  if (Wide{max_of_rank} * (ranks - 1) >= tokens) return bound;
  std::vector<const Demand*> costliest;
  for (const Demand& demand : demands) costliest.push_back(&demand);
  const auto count = std::min({max_costliest, ranks, static_cast<std::int64_t>(demands.size())});
  std::ranges::partial_sort(costliest, costliest.begin() + count, std::greater(),
                            [&](const Demand* demand) { return demand->work.*part; });
  const CheapestTokens cheapest(demands, part);
  std::int64_t sum = 0, held = 0;
  for (std::int64_t j = 1; j <= count; ++j) {
    sum += costliest[static_cast<std::size_t>(j - 1)]->work.*part;
    held += costliest[static_cast<std::size_t>(j - 1)]->tokens;
    auto min_bound = INT64_MAX;
    for (std::int64_t k = std::max<std::int64_t>(1, ceil_div(held, max_of_rank)); k <= j; ++k) {
      const auto excess =
          static_cast<std::int64_t>(std::max(Wide{0}, Wide{tokens - held} - Wide{ranks - k} * max_of_rank));
      min_bound = std::min(min_bound, ceil_div(sum + (excess > 0 ? cheapest.work_of(excess) : 0), k));
    }
    if (min_bound != INT64_MAX) bound = std::max(bound, min_bound);
  }
  return bound;
}

std::int64_t waiting_bound(std::span<const Demand> demands, std::int64_t Work::*part, std::int64_t ranks,
                           std::int64_t max_tokens) {
  const auto [work, tokens, max_sample_work] = totals_of(demands, part);
  // The most work that all ranks together can have in one micro-batch: that of the samples with the most work per
  // token.
  const auto excess = static_cast<std::int64_t>(std::max(Wide{0}, Wide{tokens} - Wide{ranks} * max_tokens));
  const auto held = work - (excess > 0 ? CheapestTokens(demands, part).work_of(excess) : 0);
  const auto beside = static_cast<std::int64_t>(std::min(Wide{ranks} * max_sample_work, Wide{held}));
  return std::max(ceil_div(work, ranks), max_sample_work + ceil_div(work - beside, ranks));
}

}  // namespace levada
