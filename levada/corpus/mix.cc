#include "levada/corpus/mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "levada/base/error.h"
#include "levada/corpus/permutation.h"

namespace levada {
namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t most_sources = 1024;
// A source's share of a block: with less than that, rounding up to a slot would more than double it.
constexpr double least_slots = 0.5;

void check(const std::vector<MixPart>& parts) {
  if (parts.empty()) throw InvalidArgument("a mix needs a source");
  if (parts.size() > most_sources) {
    throw InvalidArgument(
        fmt::format("a mix of {} sources: at most {} can be mixed; put files that belong together "
                    "into one source",
                    parts.size(), most_sources));
  }
  for (const auto& part : parts) {
    if (!std::isfinite(part.share) || part.share <= 0) {
      throw InvalidArgument(
          fmt::format("the weight of {} is {}; it must be a number above zero", part.name, part.share));
    }
    if (part.most && (*part.most < 1 || *part.most > Mix::most_samples)) {
      throw InvalidArgument(fmt::format("the source {} is to give at most {} samples; that must be 1 to {}", part.name,
                                        *part.most, Mix::most_samples));
    }
  }
  double all = 0;
  for (const auto& part : parts) all += part.share;
  for (const auto& part : parts) {
    const auto slots = part.share / all * static_cast<double>(Mix::block);
    if (slots >= least_slots) continue;
    throw InvalidArgument(
        fmt::format("the weight of {} gives it {:.2g} of the {} samples of a block, less than {}: raise it, or leave "
                    "the source out",
                    part.name, slots, Mix::block, least_slots));
  }
}

/// Divides `slots` among those of `who` in proportion to their shares, by largest remainder; none of them gets nothing
/// as long as another has more than one.
void apportion(std::int64_t slots, const std::vector<MixPart>& parts, const std::vector<std::size_t>& who,
               std::vector<std::int64_t>& quotas) {
  double all = 0;
  for (const auto k : who) all += parts[k].share;
  std::vector<std::pair<double, std::size_t>> remainders;
  auto left = slots;
  for (const auto k : who) {
    const auto exact = parts[k].share / all * static_cast<double>(slots);
    quotas[k] = static_cast<std::int64_t>(exact);
    left -= quotas[k];
    remainders.emplace_back(exact - static_cast<double>(quotas[k]), k);
  }
  std::ranges::stable_sort(remainders, [](const auto& a, const auto& b) { return a.first > b.first; });
  // Never more than there are sources, whatever rounding does.
  for (std::size_t i = 0; left > 0; ++i, --left) ++quotas[remainders[i % remainders.size()].second];
  for (const auto k : who) {
    if (quotas[k] > 0) continue;
    const auto most = *std::ranges::max_element(who, {}, [&](std::size_t each) { return quotas[each]; });
    if (quotas[most] < 2) return;
    --quotas[most];
    quotas[k] = 1;
  }
}

/// The slots of one block: no source is dealt more than it has left.
std::vector<std::int64_t> quotas_of(const std::vector<MixPart>& parts, const std::vector<std::int64_t>& left) {
  std::vector<std::int64_t> quotas(parts.size());
  std::vector<std::size_t> who;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (left[k] > 0) who.push_back(k);
  }
  auto slots = Mix::block;
  while (!who.empty()) {
    apportion(slots, parts, who, quotas);
    // Those that would exceed what they have left get just that, and the others share the rest anew.
    const auto ends = [&](std::size_t k) { return quotas[k] > left[k]; };
    if (std::ranges::none_of(who, ends)) break;
    std::erase_if(who, [&](std::size_t k) {
      if (!ends(k)) return false;
      slots -= quotas[k] = left[k];
      return true;
    });
  }
  return quotas;
}

std::int64_t sum_of(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

/// For how many blocks sources can be dealt `quotas`.
std::int64_t blocks_alike(const std::vector<std::int64_t>& quotas, const std::vector<std::int64_t>& left) {
  auto blocks = unlimited;
  for (std::size_t k = 0; k < quotas.size(); ++k) {
    if (quotas[k] > 0 && left[k] != unlimited) blocks = std::min(blocks, left[k] / quotas[k]);
  }
  return blocks;
}

}  // namespace

Mix::Mix(const std::vector<MixPart>& parts, std::uint64_t seed) : seed_(seed) {
  check(parts);
  std::vector<std::int64_t> left, before(parts.size());
  for (const auto& part : parts) left.push_back(part.most.value_or(unlimited));
  for (std::int64_t first_block = 0;;) {
    auto quotas = quotas_of(parts, left);
    const auto slots = sum_of(quotas);
    const auto blocks = blocks_alike(quotas, left);
    if (slots > 0) segments_.push_back({first_block, quotas, before});
    if (blocks == unlimited && slots > 0) return;
    if (slots < block) {
      size_ = first_block * block + slots;
      return;
    }
    for (std::size_t k = 0; k < parts.size(); ++k) {
      before[k] += blocks * quotas[k];
      if (left[k] != unlimited) left[k] -= blocks * quotas[k];
    }
    first_block += blocks;
  }
}

const Mix::Segment& Mix::segment_of(std::int64_t block_number) const {
  const auto after = std::ranges::upper_bound(segments_, block_number, {}, &Segment::first_block);
  return *std::prev(after);
}

std::vector<MixedSample> Mix::deal(std::int64_t block_number) const {
  const auto& quotas = segment_of(block_number).quotas;
  std::vector<std::size_t> owners;
  for (std::size_t k = 0; k < quotas.size(); ++k) owners.insert(owners.end(), static_cast<std::size_t>(quotas[k]), k);
  const Permutation permutation(static_cast<std::int64_t>(owners.size()), seed_,
                                static_cast<std::uint64_t>(block_number));
  std::vector<std::int64_t> given(quotas.size());
  std::vector<MixedSample> slots;
  for (std::size_t slot = 0; slot < owners.size(); ++slot) {
    const auto source = owners[static_cast<std::size_t>(permutation(static_cast<std::int64_t>(slot)))];
    slots.push_back({source, given[source]++});
  }
  return slots;
}

MixedSample Mix::at(std::int64_t g) {
  const auto number = g / block;
  if (number != dealt_block_) {
    dealt_ = deal(number);
    dealt_block_ = number;
  }
  const auto& segment = segment_of(number);
  auto sample = dealt_[static_cast<std::size_t>(g % block)];
  sample.number += segment.before[sample.source] + (number - segment.first_block) * segment.quotas[sample.source];
  return sample;
}

std::vector<std::int64_t> Mix::taken(std::int64_t g) const {
  g = std::min(g, size_.value_or(g));
  if (g == 0) return std::vector<std::int64_t>(segments_.front().quotas.size());
  // Of the block in which the last of them lies: g itself may lie behind the end.
  const auto number = (g - 1) / block;
  const auto& segment = segment_of(number);
  auto counts = segment.before;
  for (std::size_t k = 0; k < counts.size(); ++k) counts[k] += (number - segment.first_block) * segment.quotas[k];
  const auto slots = deal(number);
  for (std::int64_t slot = 0; slot < g - number * block; ++slot) ++counts[slots[static_cast<std::size_t>(slot)].source];
  return counts;
}

}  // namespace levada
