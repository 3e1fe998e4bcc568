#include "levada/exchange/ownership.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/exchange/ownership_state.h"

namespace levada {

std::string SequencePart::to_string() const {
  return is_whole() ? "whole" : fmt::format("{}part {} of {}", zigzag ? "zigzag " : "", index, count);
}

TokenRuns tokens_in(const SequencePart& part, std::int64_t length) {
  const std::int64_t chunks = std::int64_t{part.count} * (part.zigzag ? 2 : 1);
  // Not length * i / chunks, which might not fit.
  const auto begin_of = [&](std::int64_t i) { return length / chunks * i + length % chunks * i / chunks; };
  const std::int64_t first = part.index;
  TokenRuns runs{begin_of(first), begin_of(first + 1)};
  if (!part.zigzag) return runs;
  const std::int64_t second = chunks - 1 - first;
  runs.second_begin = begin_of(second);
  runs.second_end = begin_of(second + 1);
  return runs;
}

Ownership::Ownership() : state_(std::make_shared<State>()) {}

Ownership::State& Ownership::own() {
  if (state_.use_count() > 1) state_ = std::make_shared<State>(*state_);
  return *state_;
}

void Ownership::add(int rank, const SampleBatch& samples, const SequencePart& part) {
  if (rank < 0) throw InvalidArgument(fmt::format("there is no rank {}", rank));
  if (part.count == 0 || part.index >= part.count)
    throw InvalidArgument(fmt::format("there is no {}", part.to_string()));
  const Holder holder{rank, part.is_whole() ? SequencePart{} : part};
  std::vector<std::string> names;
  std::vector<std::optional<std::size_t>> known(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    known[i] = find(samples.ids()[i]);
    if (known[i]) state_->check_values(*known[i], samples.values(i), rank);
  }
  for (const std::string& name : samples.keys()) {  // nothing is changed before all of it is known to fit
    if (samples.key(name).dtype.bits == 0) continue;
    names.push_back(name);
    const auto key = find_key(name);
    const Seqlens& seqlens = samples.seqlens(name);
    bool checked = false;
    for (std::size_t i = 0; key && i < samples.size(); ++i) {
      if (!seqlens.has(i)) continue;
      if (!checked) state_->check_key(samples.key(name), samples.ids()[i], rank);
      checked = true;
      if (known[i]) state_->check_lengths(*known[i], *key, seqlens[i], rank);
    }
  }
  State& state = own();
  state.reserve(state.size() + samples.size());
  std::vector<std::size_t> rows(samples.size());
  std::vector<bool> held(samples.size());
  for (const std::string& name : names) {
    const Seqlens& seqlens = samples.seqlens(name);
    for (std::size_t i = 0; i < samples.size(); ++i) held[i] = held[i] || seqlens.has(i);
  }
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (held[i]) rows[i] = state.take_in(samples.ids()[i]);
  }
  for (const std::string& name : names) {
    const std::size_t key = state.take_in_key(samples.key(name));
    const Seqlens& seqlens = samples.seqlens(name);
    std::uint32_t before = 0, after = state.with(0, holder);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!seqlens.has(i)) continue;
      const std::uint32_t set = state.cell(rows[i], key).set;
      if (set != before) after = state.with(before = set, holder);
      state.put(rows[i], key, after, seqlens[i]);
    }
  }
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (!held[i] || samples.values(i).empty()) continue;
    PlainValues values = samples.values(i);
    values.insert(state.values(rows[i]).begin(), state.values(rows[i]).end());
    state.put_values(rows[i], std::move(values));
  }
  state.tidy();
}

void Ownership::remove(int rank, std::span<const std::string> ids) {
  State& state = own();
  for (const std::string& id : ids) {
    const auto sample = find(id);
    if (!sample) continue;
    for (std::size_t key = 0; key < state.keys().size(); ++key) {
      state.set_holders(*sample, key, state.without(state.cell(*sample, key).set, rank));
    }
    if (!state.is_held(*sample)) state.forget(*sample);
  }
  state.tidy();
}

void Ownership::clear(int rank) {
  State& state = own();
  std::vector<std::uint32_t> without(state.set_count());
  for (std::uint32_t set = 0; set < without.size(); ++set) without[set] = state.without(set, rank);
  for (std::size_t sample = state.size(); sample-- > 0;) {
    for (std::size_t key = 0; key < state.keys().size(); ++key) {
      state.set_holders(sample, key, without[state.cell(sample, key).set]);
    }
    if (!state.is_held(sample)) state.forget(sample);
  }
  state.tidy();
}

void Ownership::merge(const Ownership& other) {
  const std::shared_ptr<const State> from = other.state_;
  State& state = own();
  state.reserve(state.size() + from->size());
  for (std::size_t k = 0; k < from->keys().size(); ++k) {
    const SampleKey& key = from->keys()[k];
    std::optional<std::size_t> column;
    std::uint32_t from_set = 0, into_set = 0, merged = 0;
    for (std::size_t sample = 0; sample < from->size(); ++sample) {
      const State::Cell& cell = from->cell(sample, k);
      if (cell.set == 0) continue;
      const int rank = from->holders(cell.set).front().rank;
      if (!column) {
        state.check_key(key, from->id(sample), rank);
        column = state.take_in_key(key);
      }
      const std::size_t row = state.take_in(from->id(sample));
      const auto lengths = from->lengths(cell);
      state.check_lengths(row, *column, lengths, rank);
      const std::uint32_t set = state.cell(row, *column).set;
      if (cell.set != from_set || set != into_set || merged == 0) {
        merged = from_set = cell.set;
        merged = into_set = set;
        for (const Holder& holder : from->holders(cell.set)) merged = state.with(merged, holder);
      }
      state.put(row, *column, merged, lengths);
    }
  }
  for (std::size_t sample = 0; sample < from->size(); ++sample) {
    if (from->values(sample).empty()) continue;
    const std::size_t row = state.take_in(from->id(sample));
    for (std::size_t key = 0; key < from->keys().size(); ++key) {
      const Holders& holders = from->holders(from->cell(sample, key).set);
      if (!holders.empty()) state.check_values(row, from->values(sample), holders.front().rank);
    }
    PlainValues values = from->values(sample);
    values.insert(state.values(row).begin(), state.values(row).end());
    state.put_values(row, std::move(values));
  }
  state.tidy();
}

std::size_t Ownership::size() const {
  return state_->size();
}
std::optional<std::size_t> Ownership::find(std::string_view id) const {
  return state_->find(id, hash64(as_bytes(id)));
}
std::string_view Ownership::id(std::size_t sample) const {
  return state_->id(sample);
}
std::uint64_t Ownership::id_hash(std::size_t sample) const {
  return state_->entry(sample).hash;
}
const PlainValues& Ownership::values(std::size_t sample) const {
  return state_->values(sample);
}
std::span<const SampleKey> Ownership::keys() const {
  return state_->keys();
}
std::optional<std::size_t> Ownership::find_key(std::string_view name) const {
  return state_->find_key(name);
}
const Holders& Ownership::holders(std::size_t sample, std::size_t key) const {
  return state_->holders(state_->cell(sample, key).set);
}
std::uint32_t Ownership::holder_set(std::size_t sample, std::size_t key) const {
  return state_->cell(sample, key).set;
}
const Holders& Ownership::holder_set_at(std::uint32_t set) const {
  return state_->holders(set);
}
std::span<const std::int64_t> Ownership::lengths(std::size_t sample, std::size_t key) const {
  return state_->lengths(state_->cell(sample, key));
}
std::int64_t Ownership::tokens(std::size_t sample, std::size_t key) const {
  const auto all = lengths(sample, key);
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

SampleBatch Ownership::meta() const {
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

Ownership Ownership::select(std::span<const std::size_t> samples) const {
  Ownership chosen;
  State& state = *chosen.state_;
  for (const SampleKey& key : keys()) state.take_in_key(key);
  state.reserve(samples.size());
  std::uint32_t from = 0, to = 0;
  for (const std::size_t sample : samples) {
    const std::size_t row = state.take_in(id(sample));
    for (std::size_t key = 0; key < keys().size(); ++key) {
      const std::uint32_t set = holder_set(sample, key);
      if (set == 0) continue;
      if (set != from) to = state.intern(holder_set_at(from = set));
      state.put(row, key, to, lengths(sample, key));
    }
    state.put_values(row, values(sample));
  }
  return chosen;
}

}  // namespace levada
