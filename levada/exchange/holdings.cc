// The encoding of holdings, little-endian: columns, each with a key, the samples' numbers unless they equal those of
// the previous column, parts unless all are whole, lengths, and hashes of contents; then the numbers of samples in no
// column; then plain values.
#include "levada/exchange/holdings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "levada/base/error.h"
#include "levada/exchange/sample_directory_codec.h"
#include "levada/exchange/sample_directory_state.h"

namespace levada {
namespace {

constexpr std::uint8_t no_column = 0, column_follows = 1;

/// The requested samples that one column of a store has.
struct ColumnSamples {
  std::vector<std::uint32_t> samples;  ///< numbers among the requested ones, ascending
  std::vector<const SampleStore::Entry*> entries;
};

/// Reads sample numbers, which must ascend.
void get_samples(ByteReader& reader, std::size_t requested, std::vector<std::uint32_t>& samples) {
  get_numbers(reader, samples);
  const bool ascend = std::ranges::adjacent_find(samples, std::ranges::greater_equal()) == samples.end();
  if (!ascend || (!samples.empty() && samples.back() >= requested)) reader.fail("samples that were not requested");
}

void put_column(ByteWriter& writer, const SampleKey& key, const ColumnSamples& held, bool same) {
  const bool whole = std::ranges::all_of(held.entries, [](const auto* entry) { return entry->part.is_whole(); });
  put_key(writer, key);
  put_numbers(writer, std::span(held.samples).first(same ? 0 : held.samples.size()));
  writer.put(static_cast<std::uint32_t>(whole ? 0 : held.entries.size()));
  std::vector<std::uint32_t> counts;
  std::vector<std::int64_t> lengths;
  counts.reserve(held.entries.size());
  lengths.reserve(held.entries.size());
  for (const auto* entry : held.entries) {
    if (!whole) put_part(writer, entry->part);
    const auto all = entry->lengths.all();
    counts.push_back(static_cast<std::uint32_t>(all.size()));
    lengths.insert(lengths.end(), all.begin(), all.end());
  }
  put_lengths(writer, counts, lengths);
  std::vector<std::uint64_t> contents;
  contents.reserve(held.entries.size());
  for (const auto* entry : held.entries) contents.push_back(SampleStore::Reading::content_of(*entry));
  put_numbers(writer, contents);
}

/// Returns whether these are all samples of the store, in their rows.
bool are_all_samples(const SampleStore::Reading& here, const SampleIndex& index,
                     std::span<const Holdings::Sample> samples) {
  const auto is_there = [&](const Holdings::Sample& sample) {
    return sample.row < here.size() && sample.number < index.size() && here.id(sample.row) == index.id(sample.number);
  };
  return here.size() == samples.size() && std::ranges::all_of(samples, is_there);
}

/// Returns the samples of the store that are in the index. Looks up the smaller set in the larger.
std::vector<Holdings::Sample> requested_samples(const SampleStore::Reading& here, const SampleIndex& index,
                                                std::span<const Holdings::Sample> last) {
  if (are_all_samples(here, index, last)) return {last.begin(), last.end()};
  constexpr std::size_t search_steps = 16;  // approximate cost of an index search, in store lookups
  std::vector<Holdings::Sample> samples;
  if (here.size() < index.size() / search_steps) {
    for (std::uint32_t row = 0; row < here.size(); ++row) {
      if (const auto number = index.find(here.id(row))) samples.push_back({*number, row});
    }
    std::ranges::sort(samples, {}, &Holdings::Sample::number);
    return samples;
  }
  for (std::uint32_t number = 0; number < index.size(); ++number) {
    const auto row = here.find(index.id(number), index.hash(number));
    if (row) samples.push_back({number, static_cast<std::uint32_t>(*row)});
  }
  return samples;
}

}  // namespace

Holdings holdings_of(const SampleStore& store, const SampleIndex& index, std::span<const std::string> keys,
                     std::span<const Holdings::Sample> last) {
  const SampleStore::Reading here(store);
  Holdings holdings{.samples = requested_samples(here, index, last), .version = here.version()};
  const auto& samples = holdings.samples;
  ByteWriter writer;
  std::vector<bool> has_keys(samples.size());
  ColumnSamples before;
  for (const SampleStore::Column& column : here.columns()) {
    if (std::ranges::find(keys, column.key.name) == keys.end()) continue;
    ColumnSamples held;
    held.samples.reserve(samples.size());
    held.entries.reserve(samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const SampleStore::Entry& entry = column.entries[samples[i].row];
      if (!entry.is_here) continue;
      held.samples.push_back(samples[i].number);
      held.entries.push_back(&entry);
      has_keys[i] = true;
    }
    if (held.samples.empty()) continue;
    writer.put(column_follows);
    put_column(writer, column.key, held, held.samples == before.samples);
    before = std::move(held);
  }
  writer.put(no_column);
  std::vector<std::uint32_t> without;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (!has_keys[i]) without.push_back(samples[i].number);
  }
  put_numbers(writer, without);
  const auto has_values = [&](const Holdings::Sample& sample) { return !here.values(sample.row).empty(); };
  writer.put(static_cast<std::uint32_t>(std::ranges::count_if(samples, has_values)));
  for (const Holdings::Sample& sample : samples) {
    if (!has_values(sample)) continue;
    writer.put(sample.number);
    put_values(writer, here.values(sample.row));
  }
  holdings.bytes = std::move(writer).take();
  return holdings;
}

/// One column as received, entry by entry.
struct HoldingsTable::Column {
  SampleKey key;
  std::vector<std::uint32_t> samples;
  std::vector<SequencePart> parts;  ///< empty if all are whole
  Seqlens lengths;
  std::vector<std::uint64_t> contents;

  /// If the column omits its samples, `samples` keeps those of the previous column.
  void read(ByteReader& reader, std::size_t requested, std::span<const std::string> keys) {
    key = get_key(reader);
    if (std::ranges::find(keys, key.name) == keys.end()) reader.fail("a key that was not requested");
    std::vector<std::uint32_t> others;
    get_samples(reader, requested, others);
    if (!others.empty()) samples = std::move(others);
    if (samples.empty()) reader.fail("a key without samples");
    parts.clear();
    for (auto count = reader.get_count(5); count > 0; --count) parts.push_back(get_part(reader));
    if (!parts.empty() && parts.size() != samples.size()) reader.fail("a wrong number of parts");
    lengths = get_lengths(reader);
    if (lengths.size() != samples.size()) reader.fail("a wrong number of lengths");
    get_numbers(reader, contents);
    if (contents.size() != samples.size()) reader.fail("a wrong number of contents");
    const std::int64_t max_length = max_tokens(key);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (lengths.total(i) > max_length) reader.fail("lengths that do not fit in memory");
    }
  }
};

SampleDirectory HoldingsTable::ids_of(const SampleIndex& index) {
  SampleDirectory ids;
  SampleDirectory::State& state = *ids.state_;
  state.reserve(index.size());
  for (std::size_t i = 0; i < index.size(); ++i) state.add(index.id(i), index.hash(i));
  return ids;
}

HoldingsTable::HoldingsTable(const SampleIndex& index, std::span<const std::string> keys, SampleDirectory ids)
    : index_(index), keys_(keys), directory_(std::move(ids)), last_holder_(index.size(), -1) {
  directory_.own();
}

void HoldingsTable::add(int rank, ByteView bytes) {
  if (bytes.empty()) return;
  ByteReader reader(bytes);
  Column column;
  std::vector<SampleKey> keys;
  while (reader.get<std::uint8_t>() != no_column) {
    column.read(reader, index_.size(), keys_);
    if (std::ranges::find(keys, column.key) != keys.end()) reader.fail("a key that appears twice");
    keys.push_back(column.key);
    add_column(rank, column);
  }
  std::vector<std::uint32_t> without;
  get_samples(reader, index_.size(), without);
  for (const std::uint32_t sample : without) last_holder_[sample] = rank;
  std::optional<std::uint32_t> before;
  for (auto count = reader.get_count(8); count > 0; --count) {
    const auto sample = reader.get<std::uint32_t>();
    const bool is_held = sample < index_.size() && last_holder_[sample] == rank;
    if (!is_held || before >= sample) reader.fail("values of a sample that is not held");
    add_values(rank, sample, get_values(reader));
    before = sample;
  }
  reader.expect_end();
}

std::vector<std::uint32_t> HoldingsTable::requested() const {
  std::vector<std::uint32_t> requested(index_.requested().begin(), index_.requested().end());
  for (std::uint32_t& sample : requested) {
    if (last_holder_[sample] < 0) sample = no_sample;
  }
  return requested;
}

void HoldingsTable::add_column(int rank, const Column& column) {
  SampleDirectory::State& state = *directory_.state_;
  const auto known_key = state.find_key(column.key.name);
  if (known_key && state.keys()[*known_key] != column.key) {
    number_sets();  // for the error, which names holders
    state.check_key(column.key, index_.id(column.samples.front()), rank, {});
  }
  const std::size_t key = state.find_or_add_key(column.key);
  if (contents_.size() <= key) contents_.resize(key + 1);
  contents_[key].resize(index_.size());
  const std::uint32_t whole = sets_.add_holder(0, {rank});
  for (std::size_t i = 0; i < column.samples.size(); ++i) {
    const std::size_t sample = column.samples[i];
    last_holder_[sample] = rank;
    const auto own = column.lengths[i];
    const std::uint32_t known = state.cell(sample, key).set;
    std::uint64_t& content = contents_[key][sample];
    if (known == 0) content = column.contents[i];
    if (known == 0 && column.parts.empty()) {
      state.put_new(sample, key, whole, own);
      continue;
    }
    if (known != 0 && !std::ranges::equal(state.lengths(state.cell(sample, key)), own)) {
      number_sets();  // likewise
      state.check_lengths(sample, key, own, rank);
    }
    if (content != column.contents[i]) throw_content_differs(rank, sample, key);
    const Holder holder{rank, column.parts.empty() ? SequencePart{} : column.parts[i]};
    state.put(sample, key, sets_.add_holder(known, holder), own);
  }
}

void HoldingsTable::throw_content_differs(int rank, std::size_t sample, std::size_t key) {
  number_sets();
  std::vector<int> others;
  for (const Holder& holder : directory_.holders(sample, key)) others.push_back(holder.rank);
  throw InvalidArgument(fmt::format(
      "sample {}, key {} has other contents on rank {} than on {} {}: it has been updated, or stored, on one of them "
      "only; update it alike on all ranks that hold it, or remove the old copies",
      index_.id(sample), directory_.keys()[key].name, rank, others.size() == 1 ? "rank" : "ranks",
      fmt::join(others, ", ")));
}

SampleDirectory HoldingsTable::take() && {
  number_sets();
  return std::move(directory_);
}

void HoldingsTable::number_sets() {
  SampleDirectory::State& state = directory_.own();
  std::vector<std::uint32_t> numbers(sets_.size(), 0);
  state.renumber_sets([&](std::uint32_t set) {
    if (numbers[set] == 0) numbers[set] = state.intern(sets_.holders(set));
    return numbers[set];
  });
}

std::uint32_t HoldingsTable::HolderSets::add_holder(std::uint32_t set, const Holder& holder) {
  const Grown grown{set, holder};
  if (answer_ != 0 && grown == asked_) return answer_;
  const auto [found, is_new] = numbers_.try_emplace(grown, static_cast<std::uint32_t>(sets_.size()));
  if (is_new) sets_.push_back(grown);
  asked_ = grown;
  return answer_ = found->second;
}

Holders HoldingsTable::HolderSets::holders(std::uint32_t set) const {
  Holders holders;
  for (; set != 0; set = sets_[set].first) holders.push_back(sets_[set].second);
  std::ranges::reverse(holders);
  return holders;
}

void HoldingsTable::add_values(int rank, std::uint32_t sample, PlainValues values) {
  SampleDirectory::State& state = *directory_.state_;
  const PlainValues& known = state.values(sample);
  for (const auto& [name, value] : values) {
    const auto found = known.find(name);
    if (found == known.end() || same_values({*found}, {{name, value}})) continue;
    std::vector<int> others;
    for (const auto& [valued, by] : valued_by_) {
      if (valued == sample) others.push_back(by);
    }
    throw InvalidArgument(fmt::format("sample {} has another value of {} on rank {} than on {} {}", index_.id(sample),
                                      name, rank, others.size() == 1 ? "rank" : "ranks", fmt::join(others, ", ")));
  }
  valued_by_.emplace_back(sample, rank);
  state.add_values(sample, std::move(values));
}

}  // namespace levada
