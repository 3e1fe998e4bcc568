#include "levada/exchange/sample_index.h"

#include <algorithm>
#include <initializer_list>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/exchange/id_table.h"

namespace levada {
namespace {

std::uint64_t hash_of(std::initializer_list<std::uint64_t> numbers) {
  return hash64(std::as_bytes(std::span(numbers.begin(), numbers.size())));
}

/// Sorts by merging the existing runs, because the ids of each destination mostly ascend.
template <typename T, typename Less>
void sort_runs(std::vector<T>& values, Less less) {
  std::vector<std::size_t> ends;
  for (auto at = values.begin(); at != values.end();) {
    at = std::is_sorted_until(at, values.end(), less);
    ends.push_back(static_cast<std::size_t>(at - values.begin()));
  }
  std::vector<T> merged(values.size());
  while (ends.size() > 1) {
    std::vector<std::size_t> fewer;
    const auto place = [](auto& in, std::size_t at) { return in.begin() + static_cast<std::ptrdiff_t>(at); };
    std::size_t begin = 0;
    for (std::size_t run = 0; run < ends.size(); run += 2) {
      const std::size_t middle = ends[run], end = ends[std::min(run + 1, ends.size() - 1)];
      std::merge(place(values, begin), place(values, middle), place(values, middle), place(values, end),
                 place(merged, begin), less);
      fewer.push_back(begin = end);
    }
    values.swap(merged);
    ends = std::move(fewer);
  }
}

}  // namespace

SampleIndex::SampleIndex(std::vector<Destination> destinations) : destinations_(std::move(destinations)) {
  std::size_t count = 0;
  for (const Destination& destination : destinations_) count += destination.ids.size();
  if (count >= UINT32_MAX) throw InvalidArgument("the lists of an exchange hold fewer than 2^32 - 1 ids");
  samples_.reserve(count);
  fingerprint_ = destinations_.size();
  for (const Destination& destination : destinations_) {
    std::uint64_t ids = destination.ids.size(), ranks = destination.ranks.size();
    for (const std::string& id : destination.ids) {
      const std::uint64_t hash = hash64(as_bytes(id));
      ids += hash;
      if (!destination.ranks.empty()) samples_.push_back({id, hash, 0, static_cast<std::uint32_t>(samples_.size())});
    }
    for (const int rank : destination.ranks) ranks += hash_of({static_cast<std::uint64_t>(rank)});
    const SequencePart& part = destination.part;
    fingerprint_ += hash_of({ranks, ids, part.index, part.count, part.zigzag});
  }
  number_samples();
}

void SampleIndex::number_samples() {
  IdPrefix prefix;
  for (const Sample& sample : samples_) prefix.see(sample.id);
  for (Sample& sample : samples_) sample.prefix = prefix.of(sample.id);
  sort_runs(samples_,
            [](const Sample& a, const Sample& b) { return a.prefix != b.prefix ? a.prefix < b.prefix : a.id < b.id; });
  requested_.resize(samples_.size());
  std::size_t count = 0;
  for (const Sample& sample : samples_) {
    if (count == 0 || samples_[count - 1].hash != sample.hash || samples_[count - 1].id != sample.id) {
      samples_[count++] = sample;
    }
    requested_[sample.place] = static_cast<std::uint32_t>(count - 1);
  }
  samples_.resize(count);
}

std::optional<std::uint32_t> SampleIndex::find(std::string_view id) const {
  const auto found = std::ranges::lower_bound(samples_, id, {}, &Sample::id);
  if (found == samples_.end() || found->id != id) return std::nullopt;
  return static_cast<std::uint32_t>(found - samples_.begin());
}

}  // namespace levada
