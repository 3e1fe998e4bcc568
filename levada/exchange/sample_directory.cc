#include "levada/exchange/sample_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/exchange/sample_directory_state.h"

namespace levada {

std::string SequencePart::to_string() const {
  return is_whole() ? "whole" : fmt::format("{}part {} of {}", zigzag ? "zigzag " : "", index, count);
}

TokenRanges tokens_in(const SequencePart& part, std::int64_t length) {
  const std::int64_t chunks = std::int64_t{part.count} * (part.zigzag ? 2 : 1);
  // Not length * i / chunks, which might overflow.
  const auto begin_of = [&](std::int64_t i) { return length / chunks * i + length % chunks * i / chunks; };
  const std::int64_t first = part.index;
  TokenRanges ranges{begin_of(first), begin_of(first + 1)};
  if (!part.zigzag) return ranges;
  const std::int64_t second = chunks - 1 - first;
  ranges.second_begin = begin_of(second);
  ranges.second_end = begin_of(second + 1);
  return ranges;
}

std::uint64_t bytes_of(const SampleKey& key, const SequencePart& part, std::span<const std::int64_t> lengths) {
  std::int64_t tokens = 0;
  for (const std::int64_t length : lengths) tokens += part.is_whole() ? length : tokens_in(part, length).tokens();
  return key.bytes(tokens).value_or(0);
}

SampleDirectory::SampleDirectory() : state_(std::make_shared<State>()) {}

namespace {

Holder holder_of(int rank, const SequencePart& part) {
  if (rank < 0 || rank >= max_ranks) throw InvalidArgument(fmt::format("{} is not a rank", rank));
  if (part.count == 0 || part.index >= part.count) {
    throw InvalidArgument(fmt::format("there is no {}", part.to_string()));
  }
  return {rank, part.is_whole() ? SequencePart{} : part};
}

}  // namespace

SampleDirectory::State& SampleDirectory::own() {
  if (state_.use_count() > 1) state_ = std::make_shared<State>(*state_);
  return *state_;
}

void SampleDirectory::add(int rank, const SampleBatch& samples, const SequencePart& part) {
  const Holder holder = holder_of(rank, part);
  std::vector<std::string> names;
  std::vector<std::optional<std::size_t>> known(samples.size());
  std::vector<std::size_t> replaced;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    known[i] = find(samples.ids()[i]);
    if (!known[i]) continue;
    replaced.push_back(*known[i]);
    state_->check_values(*known[i], samples.values(i), rank);
  }
  std::vector<bool> held(samples.size());
  for (const std::string& name : samples.keys()) {  // check everything before any change
    const auto key = find_key(name);
    const Seqlens& seqlens = samples.seqlens(name);
    bool is_held = false;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!seqlens.has(i)) continue;
      if (key && !is_held) state_->check_key(samples.key(name), samples.ids()[i], rank, replaced);
      held[i] = is_held = true;
      if (key && known[i]) state_->check_lengths(*known[i], *key, seqlens[i], rank);
    }
    if (is_held) names.push_back(name);
  }
  state_->check_room(
      static_cast<std::size_t>(std::ranges::count_if(names, [&](const auto& name) { return !find_key(name); })));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (!known[i]) IdTable::check_id(samples.ids()[i]);
  }
  State& state = own();
  state.reserve(state.size() + samples.size());
  std::vector<std::size_t> rows(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (held[i]) rows[i] = state.find_or_add(samples.ids()[i], hash64(as_bytes(samples.ids()[i])));
  }
  for (const std::string& name : names) {
    const std::size_t key = state.find_or_add_key(samples.key(name));
    const Seqlens& seqlens = samples.seqlens(name);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!seqlens.has(i)) continue;
      state.put(rows[i], key, state.add_holder(state.cell(rows[i], key).set, holder), seqlens[i]);
    }
  }
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (!held[i] || samples.values(i).empty()) continue;
    state.add_values(rows[i], samples.values(i));
  }
  compact();
}

void SampleDirectory::add(int rank, const KeyHolding& holding) {
  const Holder holder = holder_of(rank, holding.part);
  const std::uint64_t hash = hash64(as_bytes(holding.id));
  const auto known = state_->ids().find(holding.id, hash);
  state_->check_key(holding.key, holding.id, rank, known ? std::span(&*known, 1) : std::span<const std::size_t>());
  const auto known_key = find_key(holding.key.name);
  if (!known_key) state_->check_room(1);
  if (known) state_->check_values(*known, holding.values, rank);
  if (known && known_key) state_->check_lengths(*known, *known_key, holding.lengths, rank);
  State& state = own();
  const std::size_t sample = known ? *known : state.find_or_add(holding.id, hash);
  const std::size_t key = state.find_or_add_key(holding.key);
  state.put(sample, key, state.add_holder(state.cell(sample, key).set, holder), holding.lengths);
  if (!holding.values.empty()) state.add_values(sample, holding.values);
  compact();
}

void SampleDirectory::remove(int rank, std::span<const std::string> ids) {
  State& state = own();
  for (const std::string& id : ids) {
    const auto sample = find(id);
    if (!sample) continue;
    for (std::size_t key = 0; key < state.keys().size(); ++key) {
      state.set_holders(*sample, key, state.remove_holder(state.cell(*sample, key).set, rank));
    }
    if (!state.is_held(*sample)) state.forget(*sample);
  }
  compact();
}

void SampleDirectory::clear(int rank) {
  State& state = own();
  std::vector<std::uint32_t> without(state.set_count());
  for (std::uint32_t set = 0; set < without.size(); ++set) without[set] = state.remove_holder(set, rank);
  for (std::size_t sample = state.size(); sample-- > 0;) {
    for (std::size_t key = 0; key < state.keys().size(); ++key) {
      state.set_holders(sample, key, without[state.cell(sample, key).set]);
    }
    if (!state.is_held(sample)) state.forget(sample);
  }
  compact();
}

void SampleDirectory::merge(const SampleDirectory& other) {
  const std::shared_ptr<const State> from = other.state_;
  State& state = own();
  state.reserve(state.size() + from->size());
  std::vector<std::size_t> rows(from->size());
  for (std::size_t sample = 0; sample < rows.size(); ++sample) {
    rows[sample] = state.find_or_add(from->id(sample), from->ids().hash(sample));
  }
  for (std::size_t k = 0; k < from->keys().size(); ++k) merge_key(state, *from, k, rows);
  for (std::size_t sample = 0; sample < rows.size(); ++sample) {
    if (from->values(sample).empty()) continue;
    for (std::size_t key = 0; key < from->keys().size(); ++key) {
      const Holders& holders = from->holders(from->cell(sample, key).set);
      if (!holders.empty()) state.check_values(rows[sample], from->values(sample), holders.front().rank);
    }
    state.add_values(rows[sample], from->values(sample));
  }
  compact();
}

void SampleDirectory::merge_key(State& state, const State& from, std::size_t from_key,
                                std::span<const std::size_t> rows) {
  std::optional<std::size_t> key;
  std::uint32_t theirs = 0, known = 0, merged = 0;
  for (std::size_t sample = 0; sample < rows.size(); ++sample) {
    const State::Cell& cell = from.cell(sample, from_key);
    if (cell.set == 0) continue;
    const Holders& holders = from.holders(cell.set);
    if (!key) {
      state.check_key(from.keys()[from_key], from.id(sample), holders.front().rank, {});
      key = state.find_or_add_key(from.keys()[from_key]);
    }
    const auto lengths = from.lengths(cell);
    state.check_lengths(rows[sample], *key, lengths, holders.front().rank);
    const std::uint32_t set = state.cell(rows[sample], *key).set;
    if (merged == 0 || cell.set != theirs || set != known) {
      theirs = cell.set;
      known = set;
      merged = state.add_holders(set, holders);
    }
    state.put(rows[sample], *key, merged, lengths);
  }
}

std::size_t SampleDirectory::size() const {
  return state_->size();
}
std::optional<std::size_t> SampleDirectory::find(std::string_view id) const {
  return state_->ids().find(id, hash64(as_bytes(id)));
}
void SampleDirectory::find_all(std::span<const std::string> ids, std::vector<std::uint32_t>& numbers) const {
  static_assert(IdTable::none == no_sample);
  state_->ids().find_all(ids, numbers);
}
std::string_view SampleDirectory::id(std::size_t sample) const {
  return state_->id(sample);
}
std::uint64_t SampleDirectory::id_hash(std::size_t sample) const {
  return state_->ids().hash(sample);
}
const PlainValues& SampleDirectory::values(std::size_t sample) const {
  return state_->values(sample);
}
std::span<const SampleKey> SampleDirectory::keys() const {
  return state_->keys();
}
std::optional<std::size_t> SampleDirectory::find_key(std::string_view name) const {
  return state_->find_key(name);
}
const Holders& SampleDirectory::holders(std::size_t sample, std::size_t key) const {
  return state_->holders(state_->cell(sample, key).set);
}
std::uint32_t SampleDirectory::holder_set(std::size_t sample, std::size_t key) const {
  return state_->cell(sample, key).set;
}
const Holders& SampleDirectory::holder_set_at(std::uint32_t set) const {
  return state_->holders(set);
}
std::span<const std::int64_t> SampleDirectory::lengths(std::size_t sample, std::size_t key) const {
  return state_->lengths(state_->cell(sample, key));
}
std::int64_t SampleDirectory::tokens(std::size_t sample, std::size_t key) const {
  const auto all = lengths(sample, key);
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

SampleBatch SampleDirectory::meta() const {
  std::vector<std::string> ids;
  ids.reserve(size());
  for (std::size_t sample = 0; sample < size(); ++sample) ids.emplace_back(id(sample));
  SampleBatch batch(std::move(ids));
  for (std::size_t key = 0; key < keys().size(); ++key) {
    Seqlens seqlens;
    for (std::size_t sample = 0; sample < size(); ++sample) {
      if (holder_set(sample, key) == 0) seqlens.push_absent();
      else seqlens.push_back(lengths(sample, key));
    }
    batch.set(keys()[key], std::move(seqlens));
  }
  for (std::size_t sample = 0; sample < size(); ++sample) batch.set_values(sample, values(sample));
  return batch;
}

void SampleDirectory::compact() {
  if (!state_->needs_compaction()) return;
  const std::shared_ptr<const State> old = state_;
  auto fresh = std::make_shared<State>();
  fresh->reserve(old->size());
  for (std::size_t sample = 0; sample < old->size(); ++sample) {
    fresh->add(old->id(sample), old->ids().hash(sample));
    fresh->put_values(sample, old->values(sample));
  }
  for (std::size_t from = 0; from < old->keys().size(); ++from) {
    if (!old->is_held_key(from)) continue;
    const std::size_t key = fresh->find_or_add_key(old->keys()[from]);
    std::uint32_t last = 0, set = 0;
    for (std::size_t sample = 0; sample < old->size(); ++sample) {
      const State::Cell& cell = old->cell(sample, from);
      if (cell.set == 0) continue;
      if (cell.set != last) set = fresh->intern(old->holders(last = cell.set));
      fresh->put(sample, key, set, old->lengths(cell));
    }
  }
  fresh->set_live_sets();
  state_ = std::move(fresh);
}

}  // namespace levada
