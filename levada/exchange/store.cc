#include "levada/exchange/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"

namespace levada {
namespace {

void check_data(const SampleBatch& samples) {
  for (const std::string& key : samples.keys()) {
    if (samples.has_data(key) || samples.size() == 0) continue;
    throw InvalidArgument(fmt::format("sample {}, key {} has no data: a meta cannot be stored", samples.ids()[0], key));
  }
}

}  // namespace

SampleStore::Lengths::Lengths(std::span<const std::int64_t> lengths) : count_(lengths.size()) {
  if (count_ == 1) {
    one_ = lengths[0];
  } else if (count_ > 1) {
    many_ = std::make_unique<std::int64_t[]>(count_);
    std::ranges::copy(lengths, many_.get());  // not payload: lengths
  }
}

std::optional<std::size_t> SampleStore::find(std::string_view id) const {
  return ids_.find(id, hash64(as_bytes(id)));
}

std::size_t SampleStore::number_of(std::string_view id) const {
  const auto found = find(id);
  if (!found) throw InvalidArgument(fmt::format("sample {} is not in the store", id));
  return *found;
}

std::size_t SampleStore::take_in(std::string_view id) {
  const std::uint64_t hash = hash64(as_bytes(id));
  if (const auto found = ids_.find(id, hash)) return *found;
  values_.emplace_back();
  for (Column& column : columns_) column.entries.emplace_back();
  return ids_.insert(id, hash);
}

const SampleStore::Column* SampleStore::column_with(std::size_t sample, std::string_view key) const {
  const auto found = std::ranges::find_if(
      columns_, [&](const Column& column) { return column.entries[sample].is_here && column.key.name == key; });
  return found == columns_.end() ? nullptr : &*found;
}

const SampleStore::Entry* SampleStore::known(std::size_t sample, std::size_t column) const {
  const Entry& entry = columns_[column].entries[sample];
  if (entry.is_here) return &entry;
  for (const std::size_t namesake : columns_[column].namesakes) {
    if (columns_[namesake].entries[sample].is_here) return &columns_[namesake].entries[sample];
  }
  return nullptr;
}

std::size_t SampleStore::column_of(const SampleKey& key) {
  const auto found = std::ranges::find(columns_, key, &Column::key);
  const auto number = static_cast<std::size_t>(found - columns_.begin());
  if (number < columns_.size()) return number;
  Column column{.key = key};
  column.entries.resize(ids_.size());
  for (std::size_t other = 0; other < number; ++other) {
    if (columns_[other].key.name != key.name) continue;
    columns_[other].namesakes.push_back(number);
    column.namesakes.push_back(other);
  }
  columns_.push_back(std::move(column));
  return number;
}

std::uint64_t SampleStore::bytes_with(const SampleBatch& samples) const {
  std::uint64_t bytes = bytes_;
  for (const std::string& key : samples.keys()) {
    const Seqlens& seqlens = samples.seqlens(key);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!seqlens.has(i)) continue;
      bytes += samples.key(key).bytes(seqlens.total(i)).value_or(0);
      const auto known = find(samples.ids()[i]);
      if (!known) continue;
      if (const Column* column = column_with(*known, key)) bytes -= column->entries[*known].size;
    }
  }
  return bytes;
}

void SampleStore::check_bound(std::uint64_t bytes) const {
  if (bytes <= options_.max_bytes) return;
  throw InvalidArgument(fmt::format("the store would hold {}, but is bounded to {}; remove samples first",
                                    format_bytes(bytes), format_bytes(options_.max_bytes)));
}

void SampleStore::put_values(std::size_t sample, const PlainValues& values) {
  if (values.empty()) return;
  PlainValues all = values;
  all.merge(values_[sample]);
  values_[sample] = std::move(all);
}

void SampleStore::put_entry(std::size_t sample, std::size_t column, Entry entry) {
  bytes_ += entry.size;
  const auto replace = [&](std::size_t at, Entry by) {
    Entry& known = columns_[at].entries[sample];
    bytes_ -= known.size;
    known = std::move(by);
  };
  for (const std::size_t namesake : columns_[column].namesakes) replace(namesake, {});
  replace(column, std::move(entry));
}

void SampleStore::put(const SampleBatch& samples) {
  std::vector<std::size_t> numbers(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    numbers[i] = take_in(samples.ids()[i]);
    put_values(numbers[i], samples.values(i));
  }
  for (const std::string& name : samples.keys()) {
    const Seqlens& seqlens = samples.seqlens(name);
    const SampleKey& key = samples.key(name);
    const std::size_t column = column_of(key);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!seqlens.has(i)) continue;
      const std::uint64_t size = key.bytes(seqlens.total(i)).value_or(0);
      auto memory = memory_.allocate(size);
      if (size > 0) copy_payload(memory.data, samples.bytes_at(name, i).data, size);
      put_entry(numbers[i], column, {{memory.data, std::move(memory.owner)}, size, Lengths(seqlens[i]), {}, true});
    }
  }
}

void SampleStore::store(const SampleBatch& samples) {
  check_data(samples);
  const std::lock_guard lock(mutex_);
  for (const std::string& id : samples.ids()) {
    if (find(id)) throw InvalidArgument(fmt::format("sample {} is in the store already", id));
  }
  check_bound(bytes_with(samples));
  put(samples);
}

void SampleStore::update(const SampleBatch& samples) {
  check_data(samples);
  const std::lock_guard lock(mutex_);
  for (const std::string& id : samples.ids()) static_cast<void>(number_of(id));
  check_bound(bytes_with(samples));
  put(samples);
}

SampleBatch SampleStore::get(std::span<const std::string> ids, std::span<const std::string> keys) const {
  const std::lock_guard lock(mutex_);
  SampleBatch batch({ids.begin(), ids.end()});
  std::vector<std::size_t> samples(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    samples[i] = number_of(ids[i]);
    if (!values_[samples[i]].empty()) batch.set_values(i, values_[samples[i]]);
  }
  std::set<std::string> names(keys.begin(), keys.end());
  for (const Column& column : columns_) {
    const auto is_here = [&](std::size_t sample) { return column.entries[sample].is_here; };
    if (keys.empty() && std::ranges::any_of(samples, is_here)) names.insert(column.key.name);
  }
  for (const std::string& name : names) add_key(batch, samples, name);
  return batch;
}

void SampleStore::add_key(SampleBatch& batch, std::span<const std::size_t> samples, const std::string& name) const {
  const SampleKey* key = nullptr;
  Seqlens seqlens;
  seqlens.reserve(samples.size());
  std::vector<SampleBytes> bytes(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Column* column = column_with(samples[i], name);
    if (column == nullptr) {
      seqlens.push_absent();
      continue;
    }
    if (key != nullptr && *key != column->key) {
      throw InvalidArgument(fmt::format("sample {}, key {} is {} {}, that of others {} {}", batch.ids()[i], name,
                                        column->key.dtype.name(), column->key.trailing.to_string(), key->dtype.name(),
                                        key->trailing.to_string()));
    }
    key = &column->key;
    const Entry& entry = column->entries[samples[i]];
    std::vector<std::int64_t> parts;
    if (!entry.part.is_whole()) {
      for (const std::int64_t length : entry.lengths.all()) parts.push_back(tokens_in(entry.part, length).tokens());
    }
    seqlens.push_back(entry.part.is_whole() ? entry.lengths.all() : parts);
    bytes[i] = entry.bytes;
  }
  if (key == nullptr && !samples.empty()) {
    throw InvalidArgument(fmt::format("none of these samples, such as {}, has key {}", batch.ids()[0], name));
  }
  if (key != nullptr) batch.set_bytes(*key, std::move(bytes), std::move(seqlens));
}

bool SampleStore::has(std::string_view id) const {
  const std::lock_guard lock(mutex_);
  return find(id).has_value();
}

bool SampleStore::has(std::string_view id, std::string_view key) const {
  return part(id, key).has_value();
}

std::optional<SequencePart> SampleStore::part(std::string_view id, std::string_view key) const {
  const std::lock_guard lock(mutex_);
  const auto sample = find(id);
  const Column* column = sample ? column_with(*sample, key) : nullptr;
  return column == nullptr ? std::nullopt : std::optional(column->entries[*sample].part);
}

void SampleStore::remove(std::span<const std::string> ids) {
  const std::lock_guard lock(mutex_);
  for (const std::string& id : ids) {
    const auto found = find(id);
    if (!found) continue;
    for (Column& column : columns_) {
      bytes_ -= column.entries[*found].size;
      column.entries[*found] = std::move(column.entries.back());
      column.entries.pop_back();
    }
    values_[*found] = std::move(values_.back());
    values_.pop_back();
    ids_.erase(*found);
  }
  ids_.tidy();
  if (ids_.size() == 0) columns_.clear();  // else there would be one of every shape that ever came
}

void SampleStore::clear() {
  const std::lock_guard lock(mutex_);
  ids_ = {};
  values_.clear();
  columns_.clear();
  bytes_ = 0;
  memory_.trim();
}

std::size_t SampleStore::size() const {
  const std::lock_guard lock(mutex_);
  return ids_.size();
}

std::uint64_t SampleStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::vector<std::string> SampleStore::ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  for (std::size_t sample = 0; sample < ids_.size(); ++sample) ids.emplace_back(ids_[sample]);
  std::ranges::sort(ids);
  return ids;
}

Ownership SampleStore::ownership(int rank) const {
  const auto all = ids();
  return ownership(rank, all, {});
}

Ownership SampleStore::ownership(int rank, std::span<const std::string> ids, std::span<const std::string> keys) const {
  const std::lock_guard lock(mutex_);
  Ownership ownership;
  for (const std::string& id : ids) {
    const auto sample = find(id);
    if (!sample || ownership.contains(id)) continue;
    for (const Column& column : columns_) {
      const Entry& entry = column.entries[*sample];
      const bool is_wanted = keys.empty() || std::ranges::find(keys, column.key.name) != keys.end();
      if (entry.is_here && is_wanted) {
        ownership.add(rank, {id, values_[*sample], column.key, entry.lengths.all(), entry.part});
      }
    }
  }
  return ownership;
}

void SampleStore::take_over(std::span<Arrival> arrivals) {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = bytes_;
  for (const Arrival& arrival : arrivals) bytes += arrival.size;
  check_bound(bytes);
  std::vector<std::pair<const SampleKey*, std::size_t>> columns;  // those met
  const auto column_met = [&](const SampleKey& key) {
    const auto found = std::ranges::find(columns, &key, [](const auto& each) { return each.first; });
    return found != columns.end() ? found->second : columns.emplace_back(&key, column_of(key)).second;
  };
  std::size_t sample = 0;
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    Arrival& arrival = arrivals[i];
    const bool is_next = i == 0 || (arrival.id.data() != arrivals[i - 1].id.data() && arrival.id != arrivals[i - 1].id);
    if (is_next) {
      sample = take_in(arrival.id);
      put_values(sample, arrival.values);
    }
    const std::size_t column = column_met(arrival.key);
    const Entry* entry = known(sample, column);
    if (entry != nullptr && (entry->part.is_whole() || entry->part == arrival.part)) continue;
    put_entry(sample, column, {std::move(arrival.bytes), arrival.size, Lengths(arrival.lengths), arrival.part, true});
  }
}

}  // namespace levada
