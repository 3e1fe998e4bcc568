#include "levada/exchange/sample_directory_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "levada/base/error.h"

namespace levada {
namespace {

/// Minimum of dead lengths and sets before compaction.
constexpr std::uint64_t compact_at_lengths = std::uint64_t{64} << 10;
constexpr std::uint64_t compact_at_sets = 1024;

/// Returns the holder after adding `more` to `known`: the whole, if either is whole, else the newer part.
Holder joined_holder(const Holder& known, const Holder& more) {
  return more.part.is_whole() || !known.part.is_whole() ? more : known;
}

std::string ranks_text(const Holders& holders, int except) {
  std::vector<int> ranks;
  for (const Holder& holder : holders) {
    if (holder.rank != except) ranks.push_back(holder.rank);
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace

std::optional<std::size_t> SampleDirectory::State::find_key(std::string_view name) const {
  const auto found = std::ranges::find(keys_, name, &SampleKey::name);
  if (found == keys_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - keys_.begin());
}

bool SampleDirectory::State::is_held(std::size_t sample) const {
  return std::ranges::any_of(columns_, [&](const auto& column) { return column[sample].set != 0; });
}

void SampleDirectory::State::reserve(std::size_t samples) {
  if (samples <= ids_.capacity()) return;
  const std::size_t room = std::max(samples, 2 * ids_.capacity());  // updates are often small and frequent
  ids_.reserve(room);
  for (auto& column : columns_) column.reserve(room);
}

std::size_t SampleDirectory::State::find_or_add(std::string_view id, std::uint64_t hash) {
  const auto found = ids_.find(id, hash);
  return found ? *found : add(id, hash);
}

std::size_t SampleDirectory::State::add(std::string_view id, std::uint64_t hash) {
  const std::size_t sample = ids_.insert(id, hash);
  for (auto& column : columns_) column.emplace_back();
  if (!values_.empty()) values_.emplace_back();
  return sample;
}

std::size_t SampleDirectory::State::find_or_add_key(const SampleKey& key) {
  if (const auto found = find_key(key.name)) {
    if (keys_[*found] != key) keys_[*found] = key;
    return *found;
  }
  check_room(1);
  keys_.push_back(key);
  held_.push_back(0);
  columns_.emplace_back().reserve(ids_.capacity());
  columns_.back().resize(size());
  return keys_.size() - 1;
}

std::uint32_t SampleDirectory::State::add_holder(std::uint32_t set, const Holder& holder) {
  if (last_addition_.set == set && last_addition_.holder == holder) return last_addition_.result;
  last_addition_ = {set, holder, add_holders(set, Holders{holder})};
  return last_addition_.result;
}

/// Interns only the result: for a set of many ranks, interning each step would take quadratic memory.
std::uint32_t SampleDirectory::State::add_holders(std::uint32_t set, const Holders& more) {
  Holders all;
  all.reserve(sets_[set].size() + more.size());
  auto known = sets_[set].cbegin();
  for (const Holder& holder : more) {
    for (; known != sets_[set].cend() && known->rank < holder.rank; ++known) all.push_back(*known);
    const bool is_known = known != sets_[set].cend() && known->rank == holder.rank;
    all.push_back(is_known ? joined_holder(*known, holder) : holder);
    if (is_known) ++known;
  }
  all.insert(all.end(), known, sets_[set].cend());
  return intern(all);
}

std::uint32_t SampleDirectory::State::remove_holder(std::uint32_t set, int rank) {
  Holders holders = sets_[set];
  if (std::erase_if(holders, [rank](const Holder& holder) { return holder.rank == rank; }) == 0) return set;
  return intern(holders);
}

void SampleDirectory::State::put(std::size_t sample, std::size_t key, std::uint32_t set,
                                 std::span<const std::int64_t> lengths) {
  Cell& cell = columns_[key][sample];
  set_holders(sample, key, set);
  if (cell.count == lengths.size() && std::ranges::equal(this->lengths(cell), lengths)) return;
  if (cell.count != 1) dead_lengths_ += cell.count;
  if (lengths.size() > UINT32_MAX) throw InvalidArgument("a sample's key holds at most 2^32 - 1 sequences");
  cell.count = static_cast<std::uint32_t>(lengths.size());
  if (lengths.size() == 1) {
    cell.value = lengths[0];
  } else {
    cell.value = static_cast<std::int64_t>(lengths_.size());
    lengths_.insert(lengths_.end(), lengths.begin(), lengths.end());
  }
}

const PlainValues& SampleDirectory::State::values(std::size_t sample) const {
  static const PlainValues none;
  return values_.empty() ? none : values_[sample];
}

void SampleDirectory::State::put_values(std::size_t sample, PlainValues values) {
  if (values_.empty() && values.empty()) return;
  values_.resize(size());
  values_[sample] = std::move(values);
}

void SampleDirectory::State::add_values(std::size_t sample, PlainValues values) {
  const PlainValues& older = this->values(sample);
  values.insert(older.begin(), older.end());
  put_values(sample, std::move(values));
}

void SampleDirectory::State::forget(std::size_t sample) {
  const std::size_t last = size() - 1;
  for (std::size_t key = 0; key < columns_.size(); ++key) {
    auto& column = columns_[key];
    if (column[sample].count != 1) dead_lengths_ += column[sample].count;
    set_holders(sample, key, 0);
    column[sample] = column[last];
    column.pop_back();
  }
  ids_.erase(sample);
  if (values_.empty()) return;
  values_[sample] = std::move(values_[last]);
  values_.pop_back();
}

bool SampleDirectory::State::needs_compaction() const {
  return std::ranges::find(held_, 0) != held_.end() || ids_.needs_compaction() ||
         (dead_lengths_ > compact_at_lengths && dead_lengths_ > lengths_.size() / 2) ||
         sets_.size() > 2 * live_sets_ + compact_at_sets;
}

void SampleDirectory::State::check_room(std::size_t more_keys) const {
  if (keys_.size() + more_keys <= max_keys) return;
  throw InvalidArgument(fmt::format("a directory holds at most {} keys, got {}", max_keys, keys_.size() + more_keys));
}

bool SampleDirectory::State::held_by_another(std::uint32_t set, int rank) const {
  return std::ranges::any_of(sets_[set], [rank](const Holder& holder) { return holder.rank != rank; });
}

void SampleDirectory::State::check_key(const SampleKey& key, std::string_view id, int rank,
                                       std::span<const std::size_t> replaced) const {
  const auto known = find_key(key.name);
  if (!known || keys_[*known] == key) return;
  std::vector<bool> is_replaced(size());
  for (const std::size_t sample : replaced) is_replaced[sample] = true;
  for (std::size_t sample = 0; sample < size(); ++sample) {
    const Cell& found = cell(sample, *known);
    if (found.set == 0 || (is_replaced[sample] && !held_by_another(found.set, rank))) continue;
    throw InvalidArgument(fmt::format("key {} is {} {} for sample {} on rank {}, but {} {} for sample {} on {}",
                                      key.name, key.dtype.name(), key.trailing.to_string(), id, rank,
                                      keys_[*known].dtype.name(), keys_[*known].trailing.to_string(), this->id(sample),
                                      ranks_text(sets_[found.set], -1)));
  }
}

void SampleDirectory::State::check_lengths(std::size_t sample, std::size_t key, std::span<const std::int64_t> lengths,
                                           int rank) const {
  const Cell& known = cell(sample, key);
  if (!held_by_another(known.set, rank) || std::ranges::equal(this->lengths(known), lengths)) return;
  throw InvalidArgument(fmt::format("sample {}, key {} has sequences of [{}] tokens on rank {}, but of [{}] on {}",
                                    id(sample), keys_[key].name, fmt::join(lengths, ", "), rank,
                                    fmt::join(this->lengths(known), ", "), ranks_text(sets_[known.set], rank)));
}

void SampleDirectory::State::check_values(std::size_t sample, const PlainValues& values, int rank) const {
  for (const auto& [name, value] : values) {
    const auto known = this->values(sample).find(name);
    if (known == this->values(sample).end() || same_values({*known}, {{name, value}})) continue;
    Holders others;
    for (std::size_t key = 0; key < keys_.size(); ++key) {
      const Holders& more = sets_[cell(sample, key).set];
      others.insert(others.end(), more.begin(), more.end());
    }
    std::ranges::sort(others);
    const auto same_rank = [](const Holder& a, const Holder& b) { return a.rank == b.rank; };
    others.erase(std::unique(others.begin(), others.end(), same_rank), others.end());
    std::erase_if(others, [rank](const Holder& holder) { return holder.rank == rank; });
    if (others.empty()) continue;
    throw InvalidArgument(fmt::format("sample {} has another value of {} on rank {} than on {}", id(sample), name, rank,
                                      ranks_text(others, rank)));
  }
}

}  // namespace levada
