#include "levada/corpus/mix_schedule.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "levada/order/permutation.h"

namespace levada {

MixSchedule::MixSchedule(std::vector<MixPart> parts, std::uint64_t seed) : parts_(std::move(parts)), seed_(seed) {
  std::vector<std::size_t> all(parts_.size());
  std::iota(all.begin(), all.end(), 0);
  phases_.push_back({0, std::vector<std::int64_t>(parts_.size()), std::move(all), Mix(parts_, seed_)});
}

void MixSchedule::change(std::int64_t first, const std::vector<double>& shares) {
  auto given = taken(first);
  std::vector<std::size_t> sources;
  std::vector<MixPart> parts;
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    parts_[k].share = shares[k];
    if (parts_[k].max_samples == given[k]) continue;
    sources.push_back(k);
    parts.push_back(parts_[k]);
    if (parts.back().max_samples) *parts.back().max_samples -= given[k];
  }
  if (parts.empty()) return;  // nothing is left to mix
  Mix mix(parts, derived_seed(seed_, phases_.size()));
  phases_.push_back({first, std::move(given), std::move(sources), std::move(mix)});
}

std::size_t MixSchedule::phase_of(std::int64_t g) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(phases_, g, {}, &Phase::first) - phases_.begin()) - 1;
}

std::optional<std::int64_t> MixSchedule::size() const {
  const auto& last = phases_.back();
  const auto more = last.mix.size();
  return more ? std::optional(last.first + *more) : std::nullopt;
}

MixedSample MixSchedule::at(std::int64_t g) {
  auto& phase = phases_[phase_of(g)];
  const auto [part, number] = phase.mix.at(g - phase.first);
  const auto source = phase.sources[part];
  return {source, phase.given[source] + number};
}

std::vector<std::int64_t> MixSchedule::taken(std::int64_t g) const {
  const auto& phase = phases_[phase_of(g)];
  auto counts = phase.given;
  const auto more = phase.mix.taken(g - phase.first);
  for (std::size_t i = 0; i < more.size(); ++i) counts[phase.sources[i]] += more[i];
  return counts;
}

}  // namespace levada
