#include "levada/exchange/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "levada/base/copy.h"
#include "levada/base/error.h"

namespace levada {
namespace {

std::uint64_t bytes_of(const SampleKey& key, std::span<const std::int64_t> lengths, const SequencePart& part) {
  std::int64_t tokens = 0;
  for (const std::int64_t length : lengths) tokens += tokens_in(part, length).tokens();
  return key.bytes(tokens).value_or(0);
}

void check_data(const SampleBatch& samples) {
  for (const std::string& key : samples.keys()) {
    if (samples.has_data(key) || samples.size() == 0) continue;
    throw InvalidArgument(fmt::format("sample {}, key {} has no data: a meta cannot be stored", samples.ids()[0], key));
  }
}

}  // namespace

const SampleStore::Entry* SampleStore::Sample::find(std::string_view key) const {
  const auto found =
      std::ranges::find(entries, key, [](const Entry& entry) { return std::string_view(entry.key->name); });
  return found == entries.end() ? nullptr : &*found;
}

const SampleStore::Sample& SampleStore::sample_of(std::string_view id) const {
  const auto found = samples_.find(id);
  if (found == samples_.end()) throw InvalidArgument(fmt::format("sample {} is not in the store", id));
  return found->second;
}

const SampleKey* SampleStore::known_key(const SampleKey& key) {
  const auto found = std::ranges::find(keys_, key);
  return found == keys_.end() ? &keys_.emplace_back(key) : &*found;
}

std::uint64_t SampleStore::bytes_with(const SampleBatch& samples) const {
  std::uint64_t bytes = bytes_;
  for (const std::string& key : samples.keys()) {
    const Seqlens& seqlens = samples.seqlens(key);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!seqlens.has(i)) continue;
      bytes += samples.key(key).bytes(seqlens.total(i)).value_or(0);
      const auto known = samples_.find(samples.ids()[i]);
      if (known == samples_.end()) continue;
      if (const Entry* entry = known->second.find(key)) bytes -= entry->size;
    }
  }
  return bytes;
}

void SampleStore::check_bound(std::uint64_t bytes) const {
  if (bytes <= options_.max_bytes) return;
  throw InvalidArgument(fmt::format("the store would hold {}, but is bounded to {}; remove samples first",
                                    format_bytes(bytes), format_bytes(options_.max_bytes)));
}

void SampleStore::put_entry(Sample& sample, Entry entry) {
  bytes_ += entry.size;
  for (Entry& known : sample.entries) {
    if (known.key->name != entry.key->name) continue;
    bytes_ -= known.size;
    known = std::move(entry);
    return;
  }
  sample.entries.push_back(std::move(entry));
}

void SampleStore::put(const SampleBatch& samples) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    Sample& sample = samples_[samples.ids()[i]];
    PlainValues values = samples.values(i);
    values.merge(sample.values);
    sample.values = std::move(values);
  }
  for (const std::string& name : samples.keys()) {
    const Seqlens& seqlens = samples.seqlens(name);
    const SampleKey* key = known_key(samples.key(name));
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!seqlens.has(i)) continue;
      const std::uint64_t size = key->bytes(seqlens.total(i)).value_or(0);
      auto memory = memory_.allocate(size);
      if (size > 0) copy_payload(memory.data, samples.bytes_at(name, i).data, size);
      put_entry(samples_.find(samples.ids()[i])->second,
                {key, {seqlens[i].begin(), seqlens[i].end()}, {}, {memory.data, std::move(memory.owner)}, size});
    }
  }
}

void SampleStore::store(const SampleBatch& samples) {
  check_data(samples);
  const std::lock_guard lock(mutex_);
  for (const std::string& id : samples.ids()) {
    if (samples_.contains(id)) throw InvalidArgument(fmt::format("sample {} is in the store already", id));
  }
  check_bound(bytes_with(samples));
  put(samples);
}

void SampleStore::update(const SampleBatch& samples) {
  check_data(samples);
  const std::lock_guard lock(mutex_);
  for (const std::string& id : samples.ids()) static_cast<void>(sample_of(id));
  check_bound(bytes_with(samples));
  put(samples);
}

SampleBatch SampleStore::get(std::span<const std::string> ids, std::span<const std::string> keys) const {
  const std::lock_guard lock(mutex_);
  SampleBatch batch({ids.begin(), ids.end()});
  std::set<std::string> names(keys.begin(), keys.end());
  std::vector<const Sample*> samples;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    samples.push_back(&sample_of(ids[i]));
    batch.set_values(i, samples.back()->values);
    for (const Entry& entry : samples.back()->entries) {
      if (keys.empty()) names.insert(entry.key->name);
    }
  }
  for (const std::string& name : names) {
    const SampleKey* key = nullptr;
    Seqlens seqlens;
    std::vector<SampleBytes> bytes(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Entry* entry = samples[i]->find(name);
      if (entry == nullptr) {
        seqlens.push_absent();
        continue;
      }
      if (key != nullptr && *key != *entry->key) {
        throw InvalidArgument(fmt::format("sample {}, key {} is {} {}, that of others {} {}", ids[i], name,
                                          entry->key->dtype.name(), entry->key->trailing.to_string(), key->dtype.name(),
                                          key->trailing.to_string()));
      }
      key = entry->key;
      std::vector<std::int64_t> lengths = entry->lengths;
      for (std::int64_t& length : lengths) length = tokens_in(entry->part, length).tokens();
      seqlens.push_back(lengths);
      bytes[i] = entry->bytes;
    }
    if (key == nullptr && !ids.empty()) {
      throw InvalidArgument(fmt::format("none of these samples, such as {}, has key {}", ids[0], name));
    }
    if (key != nullptr) batch.set_bytes(*key, std::move(bytes), std::move(seqlens));
  }
  return batch;
}

bool SampleStore::has(std::string_view id) const {
  const std::lock_guard lock(mutex_);
  return samples_.contains(id);
}

bool SampleStore::has(std::string_view id, std::string_view key) const {
  return part(id, key).has_value();
}

std::optional<SequencePart> SampleStore::part(std::string_view id, std::string_view key) const {
  const std::lock_guard lock(mutex_);
  const auto sample = samples_.find(id);
  const Entry* entry = sample == samples_.end() ? nullptr : sample->second.find(key);
  return entry == nullptr ? std::nullopt : std::optional(entry->part);
}

std::optional<SampleStore::Piece> SampleStore::find(std::string_view id, std::string_view key) const {
  const std::lock_guard lock(mutex_);
  const auto sample = samples_.find(id);
  const Entry* entry = sample == samples_.end() ? nullptr : sample->second.find(key);
  if (entry == nullptr) return std::nullopt;
  return Piece{*entry->key, entry->lengths, entry->part, entry->bytes};
}

void SampleStore::remove(std::span<const std::string> ids) {
  const std::lock_guard lock(mutex_);
  for (const std::string& id : ids) {
    const auto found = samples_.find(id);
    if (found == samples_.end()) continue;
    for (const Entry& entry : found->second.entries) bytes_ -= entry.size;
    samples_.erase(found);
  }
}

void SampleStore::clear() {
  const std::lock_guard lock(mutex_);
  samples_.clear();
  keys_.clear();
  bytes_ = 0;
  memory_.trim();
}

std::size_t SampleStore::size() const {
  const std::lock_guard lock(mutex_);
  return samples_.size();
}

std::uint64_t SampleStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::vector<std::string> SampleStore::ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, sample] : samples_) ids.push_back(id);
  std::ranges::sort(ids);
  return ids;
}

Ownership SampleStore::ownership(int rank) const {
  const auto all = ids();
  return ownership(rank, all, {});
}

Ownership SampleStore::ownership(int rank, std::span<const std::string> ids, std::span<const std::string> keys) const {
  const std::lock_guard lock(mutex_);
  std::vector<const SampleKey*> wanted;
  for (const SampleKey& key : keys_) {
    if (keys.empty() || std::ranges::find(keys, key.name) != keys.end()) wanted.push_back(&key);
  }
  Ownership ownership;
  for (const std::string& id : ids) {
    const auto found = samples_.find(id);
    if (found == samples_.end() || ownership.contains(id)) continue;
    for (const Entry& entry : found->second.entries) {
      if (std::ranges::find(wanted, entry.key) == wanted.end()) continue;
      ownership.add(rank, {id, found->second.values, *entry.key, entry.lengths, entry.part});
    }
  }
  return ownership;
}

void SampleStore::take_over(std::span<Arrival> arrivals) {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = bytes_;
  std::vector<std::uint64_t> sizes;
  sizes.reserve(arrivals.size());
  for (const Arrival& arrival : arrivals) {
    sizes.push_back(bytes_of(arrival.key, arrival.lengths, arrival.part));
    bytes += sizes.back();
  }
  check_bound(bytes);
  Sample* sample = nullptr;
  const SampleKey *asked = nullptr, *key = nullptr;
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    Arrival& arrival = arrivals[i];
    if (i == 0 || arrival.id != arrivals[i - 1].id) {
      const auto found = samples_.find(arrival.id);
      sample = found != samples_.end() ? &found->second : &samples_[std::string(arrival.id)];
      sample->entries.reserve(sample->entries.size() + 4);
    }
    if (!arrival.values.empty()) {
      PlainValues values = arrival.values;
      values.merge(sample->values);
      sample->values = std::move(values);
    }
    const Entry* known = sample->find(arrival.key.name);
    if (known != nullptr && (known->part.is_whole() || known->part == arrival.part)) continue;
    if (asked != &arrival.key) key = known_key(*(asked = &arrival.key));
    put_entry(
        *sample,
        {key, {arrival.lengths.begin(), arrival.lengths.end()}, arrival.part, std::move(arrival.bytes), sizes[i]});
  }
}

}  // namespace levada
