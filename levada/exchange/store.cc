#include "levada/exchange/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <set>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/tree/codec.h"

namespace levada {
namespace {

void check_data(const SampleBatch& samples) {
  for (const std::string& key : samples.keys()) {
    if (samples.has_data(key) || samples.size() == 0) continue;
    throw InvalidArgument(fmt::format("sample {}, key {} has no data: a meta cannot be stored", samples.ids()[0], key));
  }
}

std::uint64_t next_version() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
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

/// Rolls back samples and columns added since its construction, unless keep() was called. Drops empty columns in any
/// case.
class SampleStore::Rollback {
 public:
  explicit Rollback(SampleStore& store) : store_(store), size_(store.ids_.size()) { store.version_ = next_version(); }
  Rollback(const Rollback&) = delete;
  Rollback& operator=(const Rollback&) = delete;
  ~Rollback() {
    while (store_.ids_.size() > size_) store_.ids_.erase(store_.ids_.size() - 1);
    shorten(store_.values_);
    for (Column& column : store_.columns_) shorten(column.entries);
    store_.drop_unused_columns();
  }
  void keep() { size_ = store_.ids_.size(); }

 private:
  template <typename T>
  void shorten(std::vector<T>& list) const {
    if (list.size() > size_) list.erase(list.begin() + static_cast<std::ptrdiff_t>(size_), list.end());
  }

  SampleStore& store_;
  std::size_t size_;
};

void SampleStore::drop_unused_columns() {
  std::erase_if(columns_, [](const Column& column) { return column.held == 0; });
}

std::size_t SampleStore::find_or_add(std::string_view id, std::uint64_t hash) {
  const auto [sample, is_new] = ids_.find_or_insert(id, hash);
  if (!is_new) return sample;
  values_.emplace_back();
  for (Column& column : columns_) column.entries.emplace_back();
  return sample;
}

std::size_t SampleStore::column_of(const SampleKey& key) {
  const auto found = std::ranges::find(columns_, key, &Column::key);
  const auto number = static_cast<std::size_t>(found - columns_.begin());
  if (number < columns_.size()) return number;
  Column column{.key = key};
  column.entries.resize(ids_.size());
  columns_.push_back(std::move(column));
  return number;
}

std::vector<std::size_t> SampleStore::columns_named(std::string_view name) const {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].key.name == name) found.push_back(i);
  }
  return found;
}

const SampleStore::Column* SampleStore::column_with(std::size_t sample, std::string_view key) const {
  const auto found = std::ranges::find_if(
      columns_, [&](const Column& column) { return column.entries[sample].is_here && column.key.name == key; });
  return found == columns_.end() ? nullptr : &*found;
}

void SampleStore::check_bound(std::uint64_t bytes) const {
  if (bytes <= options_.max_bytes) return;
  throw InvalidArgument(fmt::format("the store would hold {}, but is bounded to {}; remove samples first",
                                    format_bytes(bytes), format_bytes(options_.max_bytes)));
}

void SampleStore::put_values(std::size_t sample, PlainValues values) {
  values.merge(values_[sample]);  // new values win
  values_[sample] = std::move(values);
}

void SampleStore::put_entry(std::size_t sample, std::size_t column, Entry entry) {
  const Column* known = column_with(sample, columns_[column].key.name);
  if (known != nullptr) replace(columns_[static_cast<std::size_t>(known - columns_.data())], sample, {});
  replace(columns_[column], sample, std::move(entry));
}

void SampleStore::replace(Column& column, std::size_t sample, Entry by) {
  Entry& known = column.entries[sample];
  bytes_ = bytes_ - known.size + by.size;
  column.held = column.held - (known.is_here ? 1 : 0) + (by.is_here ? 1 : 0);
  known = std::move(by);
}

void SampleStore::use_memory_of(const std::shared_ptr<Engine>& engine) {
  const std::lock_guard lock(mutex_);
  if (engine_.expired()) engine_ = engine;
}

BufferPool::Buffer SampleStore::allocate_piece(std::uint64_t bytes) {
  const auto engine = engine_.lock();
  try {
    if (auto block = engine ? engine->try_allocate(bytes, BlockUse::storage) : std::nullopt) {
      std::byte* const data = block->memory().data();
      return {data, std::make_shared<const Block>(std::move(*block))};
    }
  } catch (const Error&) {  // the group has ended
  }
  return memory_.allocate(bytes);
}

std::vector<BufferPool::Buffer> SampleStore::allocate(std::span<const std::uint64_t> sizes) {
  const std::lock_guard lock(mutex_);
  return allocate_all(sizes);
}

std::vector<BufferPool::Buffer> SampleStore::allocate_all(std::span<const std::uint64_t> sizes) {
  constexpr std::uint64_t max_together = std::uint64_t{256} << 10;
  std::vector<BufferPool::Buffer> buffers;
  buffers.reserve(sizes.size());
  for (std::size_t begin = 0; begin < sizes.size();) {
    std::uint64_t together = align_up(sizes[begin], leaf_alignment);
    std::size_t end = begin + 1;
    for (; end < sizes.size() && together + align_up(sizes[end], leaf_alignment) <= max_together; ++end) {
      together += align_up(sizes[end], leaf_alignment);
    }
    const auto memory = allocate_piece(together);
    std::byte* data = memory.data;
    for (; begin < end; ++begin) {
      buffers.push_back({data, memory.owner});
      data += align_up(sizes[begin], leaf_alignment);
    }
  }
  return buffers;
}

void SampleStore::put(const SampleBatch& samples, Payload payload) {
  Rollback rollback(*this);
  std::vector<std::size_t> numbers;
  std::vector<PlainValues> values;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    numbers.push_back(find_or_add(samples.ids()[i], hash64(as_bytes(samples.ids()[i]))));
    values.push_back(samples.values(i));
  }
  struct ItemEntry {
    std::size_t sample, column;
    Entry entry;
  };
  std::vector<ItemEntry> incoming;
  std::vector<std::uint64_t> sizes;
  std::uint64_t bytes = bytes_;
  for (const std::string& key : samples.keys()) {
    const Seqlens& seqlens = samples.seqlens(key);
    const std::size_t column = column_of(samples.key(key));
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!seqlens.has(i)) continue;
      sizes.push_back(samples.key(key).bytes(seqlens.total(i)).value_or(0));
      incoming.push_back({numbers[i], column, {samples.bytes_at(key, i), sizes.back(), Lengths(seqlens[i]), {}, true}});
      const Column* known = column_with(numbers[i], key);
      bytes += sizes.back() - (known == nullptr ? 0 : known->entries[numbers[i]].size);
    }
  }
  check_bound(bytes);
  if (payload == Payload::copied) {
    auto memory = allocate_all(sizes);
    for (std::size_t i = 0; i < incoming.size(); ++i) {
      SampleBytes& from = incoming[i].entry.bytes;
      if (sizes[i] > 0) copy_payload(memory[i].data, from.data, sizes[i]);
      from = {memory[i].data, std::move(memory[i].owner)};
    }
  }
  rollback.keep();
  for (std::size_t i = 0; i < samples.size(); ++i) put_values(numbers[i], std::move(values[i]));
  for (ItemEntry& each : incoming) put_entry(each.sample, each.column, std::move(each.entry));
}

void SampleStore::add(const SampleBatch& samples, Payload payload) {
  check_data(samples);
  const std::lock_guard lock(mutex_);
  for (const std::string& id : samples.ids()) {
    if (!find(id)) continue;
    throw InvalidArgument(fmt::format("sample {} is in the store already; update it, or remove it", id));
  }
  put(samples, payload);
}

void SampleStore::store(const SampleBatch& samples) {
  add(samples, Payload::copied);
}

void SampleStore::store_without_copy(const SampleBatch& samples) {
  add(samples, Payload::shared);
}

void SampleStore::update(const SampleBatch& samples) {
  check_data(samples);
  const std::lock_guard lock(mutex_);
  for (const std::string& id : samples.ids()) static_cast<void>(number_of(id));
  put(samples, Payload::copied);
}

SampleBatch SampleStore::get(std::span<const std::string> ids, std::span<const std::string> keys,
                             bool allow_absent) const {
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
  for (const std::string& name : names) add_key(batch, samples, name, allow_absent);
  return batch;
}

void SampleStore::add_key(SampleBatch& batch, std::span<const std::size_t> samples, const std::string& name,
                          bool allow_absent) const {
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
      throw InvalidArgument(fmt::format("sample {}, key {} is {} {}, but other samples have {} {}", batch.ids()[i],
                                        name, column->key.dtype.name(), column->key.trailing.to_string(),
                                        key->dtype.name(), key->trailing.to_string()));
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
  if (key == nullptr && samples.empty()) return;
  if (key == nullptr && !allow_absent) {
    throw InvalidArgument(fmt::format("none of these samples, such as {}, has key {}", batch.ids()[0], name));
  }
  batch.set_bytes(key != nullptr ? *key : SampleKey{.name = name}, std::move(bytes), std::move(seqlens));
}

SampleBatch SampleStore::get_copy(std::span<const std::string> ids, std::span<const std::string> keys,
                                  bool allow_absent) {
  return get(ids, keys, allow_absent).copied(memory_);
}

std::uint64_t SampleStore::Reading::content_of(const Entry& entry) {
  // A part was committed with the content of the whole.
  if (entry.content == 0) entry.content = hash64(ByteView(entry.bytes.data, entry.size)) | 1;
  return entry.content;
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
  version_ = next_version();
  for (const std::string& id : ids) {
    const auto found = find(id);
    if (!found) continue;
    for (Column& column : columns_) {
      replace(column, *found, {});
      column.entries[*found] = std::move(column.entries.back());
      column.entries.pop_back();
    }
    values_[*found] = std::move(values_.back());
    values_.pop_back();
    ids_.erase(*found);
  }
  drop_unused_columns();
  ids_.compact();
}

void SampleStore::clear() {
  const std::lock_guard lock(mutex_);
  version_ = next_version();
  ids_ = {};
  values_.clear();
  columns_.clear();
  bytes_ = 0;
  memory_.trim();
  try {
    if (const auto engine = engine_.lock()) engine->trim();
  } catch (const Error&) {  // a forked child has none of the engine's memory
  }
}

std::size_t SampleStore::size() const {
  const std::lock_guard lock(mutex_);
  return ids_.size();
}

std::uint64_t SampleStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::uint64_t SampleStore::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

std::vector<std::string> SampleStore::ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  for (std::size_t sample = 0; sample < ids_.size(); ++sample) ids.emplace_back(ids_[sample]);
  std::ranges::sort(ids);
  return ids;
}

SampleDirectory SampleStore::directory(int rank) const {
  const auto all = ids();
  return directory(rank, all, {});
}

SampleDirectory SampleStore::directory(int rank, std::span<const std::string> ids,
                                       std::span<const std::string> keys) const {
  const std::lock_guard lock(mutex_);
  SampleDirectory directory;
  for (const std::string& id : ids) {
    const auto sample = find(id);
    if (!sample || directory.contains(id)) continue;
    for (const Column& column : columns_) {
      const Entry& entry = column.entries[*sample];
      const bool is_wanted = keys.empty() || std::ranges::find(keys, column.key.name) != keys.end();
      if (entry.is_here && is_wanted) {
        directory.add(rank, {id, values_[*sample], column.key, entry.lengths.all(), entry.part});
      }
    }
  }
  return directory;
}

void SampleStore::commit(std::span<PendingWrite> writes) {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = bytes_;
  for (const PendingWrite& write : writes) bytes += write.size;
  check_bound(bytes);
  Rollback rollback(*this);
  struct TouchedColumn {
    const SampleKey* key;
    std::size_t column;
    std::vector<std::size_t> same_name;  // columns; a sample has an entry in at most one of them
    std::size_t added = 0;               // bytes of entries of new samples
  };
  std::vector<TouchedColumn> touched_columns;
  const auto column_touched_by = [&](const PendingWrite& write) {
    return std::ranges::find(touched_columns, &write.key, &TouchedColumn::key);
  };
  for (const PendingWrite& write : writes) {
    if (column_touched_by(write) == touched_columns.end())
      touched_columns.push_back({&write.key, column_of(write.key), {}});
  }
  for (TouchedColumn& each : touched_columns) each.same_name = columns_named(each.key->name);
  // Writes entries of new samples immediately. On failure, they are removed together with the samples.
  struct Replacement {
    std::size_t sample;
    const TouchedColumn* touched;
    Entry entry;
  };
  std::vector<Replacement> replacements;
  std::vector<std::pair<std::size_t, PlainValues>> values;
  std::size_t sample = 0, added = 0;
  bool is_new = false;
  for (std::size_t i = 0; i < writes.size(); ++i) {
    PendingWrite& write = writes[i];
    if (i == 0 || (write.id.data() != writes[i - 1].id.data() && write.id != writes[i - 1].id)) {
      const std::size_t count = ids_.size();
      sample = find_or_add(write.id, write.hash);
      is_new = ids_.size() > count;
      if (!write.values.empty()) values.emplace_back(sample, write.values);
    }
    TouchedColumn& touched = *column_touched_by(write);
    Entry entry{std::move(write.bytes), write.size, Lengths(write.lengths), write.part, true, write.content};
    Entry& place = columns_[touched.column].entries[sample];
    if (is_new && touched.same_name.size() == 1 && !place.is_here) {
      added += entry.size;
      ++touched.added;
      place = std::move(entry);
    } else {
      replacements.push_back({sample, &touched, std::move(entry)});
    }
  }
  rollback.keep();
  bytes_ += added;
  for (const TouchedColumn& each : touched_columns) columns_[each.column].held += each.added;
  for (auto& [of, some] : values) put_values(of, std::move(some));
  for (Replacement& each : replacements) {
    const auto is_here = [&](std::size_t column) { return columns_[column].entries[each.sample].is_here; };
    const auto there = std::ranges::find_if(each.touched->same_name, is_here);
    if (there != each.touched->same_name.end()) {
      const SequencePart part = columns_[*there].entries[each.sample].part;
      if (part.is_whole() || part == each.entry.part) continue;
      replace(columns_[*there], each.sample, {});
    }
    replace(columns_[each.touched->column], each.sample, std::move(each.entry));
  }
}

}  // namespace levada
