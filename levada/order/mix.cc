#include "levada/order/mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "levada/base/error.h"
#include "levada/order/permutation.h"

namespace levada {
namespace {

// Times are integers: the shares add up to about `all_shares`, and a phase is in units of 1 / `phases`. The product of
// a share, a time and `phases` then fits in 128 bits until the source has reached its cap.
__extension__ using Wide = unsigned __int128;
constexpr double all_shares = 0x1p36;
constexpr std::uint64_t phases = 256;
constexpr double min_share = 1e-9;

void check(const std::vector<MixPart>& parts) {
  if (parts.empty()) throw InvalidArgument("a mix needs a source");
  double all = 0;
  for (const auto& part : parts) {
    if (!std::isfinite(part.share) || part.share <= 0) {
      throw InvalidArgument(
          fmt::format("the weight of {} is {}; it must be a number above zero", part.name, part.share));
    }
    if (part.max_samples && (*part.max_samples < 1 || *part.max_samples > Mix::max_samples)) {
      throw InvalidArgument(fmt::format("the source {} may give at most {} samples; that must be 1 to {}", part.name,
                                        *part.max_samples, Mix::max_samples));
    }
    all += part.share;
  }
  for (const auto& part : parts) {
    if (part.share / all >= min_share) continue;
    throw InvalidArgument(
        fmt::format("the weight of {} is {:.2g} of all weights, less than {}: raise it, or leave the "
                    "source out",
                    part.name, part.share / all, min_share));
  }
}

/// The next sample of a source, for a heap with the earliest one at the front.
struct Next {
  std::size_t source;
  Wide time;  ///< its numerator; the denominator is the share
  std::uint64_t share;

  /// Returns whether it is later than the other.
  bool operator<(const Next& other) const {
    const auto mine = time * other.share, others = other.time * share;
    return mine != others ? mine > others : source > other.source;
  }
};

std::int64_t sum_of(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

}  // namespace

Mix::Mix(const std::vector<MixPart>& parts, std::uint64_t seed) : seed_(seed) {
  check(parts);
  double all = 0;
  for (const auto& part : parts) all += part.share;
  std::int64_t size = 0;
  bool ends = true;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const auto share = static_cast<std::uint64_t>(std::llround(parts[k].share / all * all_shares));
    // Multiples of the golden ratio are spread evenly, for any number of parts.
    const auto phase = (k * 0x9e3779b97f4a7c15U + 0x8000000000000000U) >> 56;
    parts_.push_back({std::max<std::uint64_t>(share, 1), phase, parts[k].max_samples});
    ends = ends && parts[k].max_samples;
    size += parts[k].max_samples.value_or(0);
  }
  if (ends) size_ = size;
}

/// Returns how many of the first g samples each source has, before the permutation within blocks.
std::vector<std::int64_t> Mix::counts_before(std::int64_t g) const {
  Wide all = 0;
  for (const auto& part : parts_) all += part.share;
  // Counts the samples with a time of at most `time` in a mix without caps.
  const auto counts_at = [&](Wide time) {
    std::vector<std::int64_t> counts;
    for (const auto& part : parts_) {
      const auto last = part.max_samples
                            ? (Wide(*part.max_samples - 1) * phases + part.phase) * all / (Wide(part.share) * phases)
                            : 0;
      if (part.max_samples && time > last) {
        counts.push_back(*part.max_samples);
        continue;
      }
      const Wide reached = part.share * time * phases, first = all * part.phase;
      counts.push_back(reached < first ? 0 : static_cast<std::int64_t>((reached - first) / (all * phases)) + 1);
    }
    return counts;
  };
  // Find the last time with at most g samples.
  Wide low = 0, high = 1;
  if (sum_of(counts_at(0)) > g) return std::vector<std::int64_t>(parts_.size());
  while (sum_of(counts_at(high)) <= g && high < Wide(1) << 100) high *= 2;
  while (high - low > 1) {
    const auto middle = low + (high - low) / 2;
    (sum_of(counts_at(middle)) <= g ? low : high) = middle;
  }
  return counts_at(low);
}

Mix::Block Mix::deal(std::int64_t number, std::vector<std::int64_t> counts) const {
  std::vector<Next> next;
  const auto add = [&](std::size_t k) {
    if (parts_[k].max_samples == counts[k]) return false;
    next.push_back({k, Wide(counts[k]) * phases + parts_[k].phase, parts_[k].share});
    return true;
  };
  for (std::size_t k = 0; k < parts_.size(); ++k) add(k);
  std::make_heap(next.begin(), next.end());
  const auto take = [&] {
    std::pop_heap(next.begin(), next.end());
    const auto source = next.back().source;
    next.pop_back();
    ++counts[source];
    if (add(source)) std::push_heap(next.begin(), next.end());
    return source;
  };
  const auto begin = number * block;
  for (auto g = sum_of(counts); g < begin; ++g) take();
  Block dealt{.number = number, .samples = {}, .end = {}};
  auto given = counts;
  std::vector<std::size_t> owners;
  while (!next.empty() && static_cast<std::int64_t>(owners.size()) < block) owners.push_back(take());
  std::ranges::sort(owners);
  const Permutation permutation(static_cast<std::int64_t>(owners.size()), seed_, static_cast<std::uint64_t>(number));
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const auto source = owners[static_cast<std::size_t>(permutation(static_cast<std::int64_t>(i)))];
    dealt.samples.push_back({source, given[source]++});
  }
  dealt.end = std::move(counts);
  return dealt;
}

MixedSample Mix::at(std::int64_t g) {
  const auto number = g / block;
  if (number != dealt_.number) {
    const bool follows = dealt_.number >= 0 && number == dealt_.number + 1;
    dealt_ = deal(number, follows ? std::move(dealt_.end) : counts_before(number * block));
  }
  return dealt_.samples[static_cast<std::size_t>(g % block)];
}

std::vector<std::int64_t> Mix::taken(std::int64_t g) const {
  g = std::min(g, size_.value_or(g));
  if (g == 0) return std::vector<std::int64_t>(parts_.size());
  // Use the block of sample g - 1, since g itself may be past the end.
  const auto number = (g - 1) / block;
  const auto dealt = deal(number, counts_before(number * block));
  auto counts = dealt.end;
  for (auto i = static_cast<std::size_t>(g - number * block); i < dealt.samples.size(); ++i) {
    --counts[dealt.samples[i].source];
  }
  return counts;
}

}  // namespace levada
