// Claims as bytes, little-endian: columns, each of them a key, its form, the samples' numbers unless they are those of
// the column before, parts unless all are whole, counts of lengths unless each has one, and lengths; then the numbers
// of samples in no column; then plain values.
#include "levada/exchange/claims.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/exchange/ownership_codec.h"
#include "levada/exchange/ownership_state.h"
#include "levada/exchange/planner.h"

namespace levada {
namespace {

std::uint64_t hash_of(std::initializer_list<std::uint64_t> numbers) {
  return hash64(std::as_bytes(std::span(numbers.begin(), numbers.size())));
}

/// Sorts what mostly is a few ascending runs, as the ids of each destination are: neighbours are merged until one run
/// is left.
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

std::uint64_t sum_of_hashes(const std::vector<std::string>& texts) {
  std::uint64_t sum = texts.size();
  for (const std::string& text : texts) sum += hash64(as_bytes(text));
  return sum;
}

}  // namespace

RequestedSamples::RequestedSamples(const ExchangeRequest& request) {
  std::size_t count = 0;
  for (const Destination& destination : request.destinations) count += destination.ids.size();
  if (count >= UINT32_MAX) throw InvalidArgument("an exchange has room for 2^32 samples");
  samples_.reserve(count);
  std::uint64_t destinations = request.destinations.size();
  for (const Destination& destination : request.destinations) {
    std::uint64_t ids = destination.ids.size(), ranks = destination.ranks.size();
    for (const std::string& id : destination.ids) {
      const std::uint64_t hash = hash64(as_bytes(id));
      ids += hash;
      if (!destination.ranks.empty()) samples_.push_back({id, hash, 0, static_cast<std::uint32_t>(samples_.size())});
    }
    for (const int rank : destination.ranks) ranks += hash_of({static_cast<std::uint64_t>(rank)});
    const SequencePart& part = destination.part;
    destinations += hash_of({ranks, ids, part.index, part.count, part.zigzag});
  }
  fingerprint_ = hash_of({destinations, sum_of_hashes(request.keys), sum_of_hashes(request.cut_keys),
                          std::uint64_t{request.allow_absent}});
  number_samples();
}

void RequestedSamples::number_samples() {
  IdPrefix prefix;
  for (const Sample& sample : samples_) prefix.see(sample.id);
  for (Sample& sample : samples_) sample.prefix = prefix.of(sample.id);
  sort_runs(samples_,
            [](const Sample& a, const Sample& b) { return a.prefix != b.prefix ? a.prefix < b.prefix : a.id < b.id; });
  asked_.resize(samples_.size());
  std::size_t count = 0;
  for (const Sample& sample : samples_) {
    if (count == 0 || samples_[count - 1].hash != sample.hash || samples_[count - 1].id != sample.id) {
      samples_[count++] = sample;
    }
    asked_[sample.place] = static_cast<std::uint32_t>(count - 1);
  }
  samples_.resize(count);
}

namespace {

constexpr std::uint8_t no_column = 0, column_follows = 1;
enum Form : std::uint8_t { same_samples = 1, parts = 2, counted = 4, all_forms = 7 };

/// What a store has of the samples asked for in one of its columns.
struct Held {
  std::vector<std::uint32_t> samples;  ///< among those requested, ascending
  std::vector<const SampleStore::Entry*> entries;
};

template <typename T>
void put_all(ByteWriter& writer, const std::vector<T>& values) {
  writer.put_sized(std::as_bytes(std::span(values)));
}

template <typename T>
void get_all(ByteReader& reader, std::vector<T>& values) {
  const ByteView bytes = reader.get_sized();
  if (bytes.size() % sizeof(T) != 0) reader.fail("numbers that are cut off");
  values.resize(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());  // not payload: what a rank claims
}

/// Samples' numbers, which must ascend.
void get_samples(ByteReader& reader, std::size_t requested, std::vector<std::uint32_t>& samples) {
  get_all(reader, samples);
  const bool ascend = std::ranges::adjacent_find(samples, std::ranges::greater_equal()) == samples.end();
  if (!ascend || (!samples.empty() && samples.back() >= requested)) reader.fail("samples that were not asked for");
}

void put_column(ByteWriter& writer, const SampleKey& key, const Held& held, bool same) {
  const bool whole = std::ranges::all_of(held.entries, [](const auto* entry) { return entry->part.is_whole(); });
  const bool single =
      std::ranges::all_of(held.entries, [](const auto* entry) { return entry->lengths.all().size() == 1; });
  put_key(writer, key);
  writer.put(static_cast<std::uint8_t>((same ? same_samples : 0) | (whole ? 0 : parts) | (single ? 0 : counted)));
  if (!same) put_all(writer, held.samples);
  for (const auto* entry : held.entries) {
    if (!whole) put_part(writer, entry->part);
  }
  std::vector<std::uint32_t> counts;
  std::vector<std::int64_t> lengths;
  lengths.reserve(held.entries.size());
  for (const auto* entry : held.entries) {
    const auto all = entry->lengths.all();
    if (!single) counts.push_back(static_cast<std::uint32_t>(all.size()));
    lengths.insert(lengths.end(), all.begin(), all.end());
  }
  if (!single) put_all(writer, counts);
  put_all(writer, lengths);
}

}  // namespace

Bytes encode_claims(const SampleStore& store, const RequestedSamples& requested, std::span<const std::string> keys) {
  const SampleStore::Reading here(store);
  std::vector<std::pair<std::uint32_t, std::size_t>> known;  // numbers among those requested, and in the store
  for (std::uint32_t i = 0; i < requested.size(); ++i) {
    if (const auto sample = here.find(requested.id(i), requested.hash(i))) known.emplace_back(i, *sample);
  }
  ByteWriter writer;
  std::vector<bool> claimed(requested.size());
  Held before;
  for (const SampleStore::Column& column : here.columns()) {
    if (std::ranges::find(keys, column.key.name) == keys.end()) continue;
    Held held;
    held.samples.reserve(known.size());
    held.entries.reserve(known.size());
    for (const auto& [number, sample] : known) {
      const SampleStore::Entry& entry = column.entries[sample];
      if (!entry.is_here) continue;
      held.samples.push_back(number);
      held.entries.push_back(&entry);
      claimed[number] = true;
    }
    if (held.samples.empty()) continue;
    writer.put(column_follows);
    put_column(writer, column.key, held, held.samples == before.samples);
    before = std::move(held);
  }
  writer.put(no_column);
  std::vector<std::uint32_t> without;
  for (const auto& [number, sample] : known) {
    if (!claimed[number]) without.push_back(number);
  }
  put_all(writer, without);
  const auto tells = [&](const auto& each) { return !here.values(each.second).empty(); };
  writer.put(static_cast<std::uint32_t>(std::ranges::count_if(known, tells)));
  for (const auto& each : known) {
    if (!tells(each)) continue;
    writer.put(each.first);
    put_values(writer, here.values(each.second));
  }
  return std::move(writer).take();
}

/// One column as it comes: entry by entry.
struct Claims::Column {
  SampleKey key;
  std::vector<std::uint32_t> samples;
  std::vector<SequencePart> parts;    ///< none where all are whole
  std::vector<std::uint32_t> counts;  ///< of lengths; none where each entry has one
  std::vector<std::int64_t> lengths;

  /// `samples` are still those of the column before.
  void read(ByteReader& reader, std::size_t requested, std::span<const std::string> keys) {
    key = get_key(reader);
    if (std::ranges::find(keys, key.name) == keys.end()) reader.fail("a key that was not asked for");
    const auto form = reader.get<std::uint8_t>();
    if (form > all_forms) reader.fail("a form that there is not");
    if ((form & same_samples) == 0) get_samples(reader, requested, samples);
    if (samples.empty()) reader.fail("a key of no samples");
    parts.clear();
    for (std::size_t i = 0; (form & Form::parts) != 0 && i < samples.size(); ++i) parts.push_back(get_part(reader));
    counts.clear();
    if ((form & counted) != 0) get_all(reader, counts);
    get_all(reader, lengths);
    check_lengths(reader, (form & counted) != 0);
  }

 private:
  void check_lengths(ByteReader& reader, bool are_counted) const {
    std::uint64_t sum = are_counted ? 0 : samples.size();
    for (const std::uint32_t count : counts) sum += count;
    if (sum != lengths.size() || (are_counted && counts.size() != samples.size()))
      reader.fail("too many or few lengths");
    const std::int64_t most = most_tokens(key);
    auto length = lengths.begin();
    for (std::size_t i = 0; i < samples.size(); ++i) {
      std::int64_t left = most;
      for (std::uint32_t count = are_counted ? counts[i] : 1; count > 0; --count, ++length) {
        if (*length < 0 || *length > left) reader.fail("lengths that cannot be, or do not fit in memory");
        left -= *length;
      }
    }
  }
};

Claims::Claims(const RequestedSamples& requested, std::span<const std::string> keys)
    : requested_(requested), keys_(keys), claimed_by_(requested.size(), -1) {
  Ownership::State& state = *ownership_.state_;
  state.reserve(requested.size());
  for (std::size_t i = 0; i < requested.size(); ++i) state.add(requested.id(i), requested.hash(i));
}

void Claims::add(int rank, ByteView bytes) {
  if (bytes.empty()) return;
  ByteReader reader(bytes);
  Column column;
  std::vector<SampleKey> keys;
  while (reader.get<std::uint8_t>() != no_column) {
    column.read(reader, requested_.size(), keys_);
    if (std::ranges::find(keys, column.key) != keys.end()) reader.fail("a key that stands twice");
    keys.push_back(column.key);
    add_column(rank, column);
  }
  std::vector<std::uint32_t> without;
  get_samples(reader, requested_.size(), without);
  for (const std::uint32_t sample : without) claimed_by_[sample] = rank;
  std::optional<std::uint32_t> before;
  for (auto count = reader.get_count(8); count > 0; --count) {
    const auto sample = reader.get<std::uint32_t>();
    const bool is_claimed = sample < requested_.size() && claimed_by_[sample] == rank;
    if (!is_claimed || before >= sample) reader.fail("values of a sample that is not claimed");
    add_values(rank, sample, get_values(reader));
    before = sample;
  }
  reader.expect_end();
}

std::vector<std::uint32_t> Claims::asked() const {
  std::vector<std::uint32_t> asked(requested_.asked().begin(), requested_.asked().end());
  for (std::uint32_t& sample : asked) {
    if (claimed_by_[sample] < 0) sample = no_sample;
  }
  return asked;
}

void Claims::add_column(int rank, const Column& column) {
  Ownership::State& state = *ownership_.state_;
  const auto known_key = state.find_key(column.key.name);
  if (known_key && state.keys()[*known_key] != column.key) {
    numbered().ownership_.state_->check_key(column.key, requested_.id(column.samples.front()), rank, {});
  }
  const std::size_t key = state.take_in_key(column.key);
  const std::uint32_t whole = sets_.with(0, {rank});
  auto lengths = std::span(column.lengths);
  for (std::size_t i = 0; i < column.samples.size(); ++i) {
    const std::size_t sample = column.samples[i];
    claimed_by_[sample] = rank;
    const auto own = lengths.first(column.counts.empty() ? 1 : column.counts[i]);
    lengths = lengths.subspan(own.size());
    const std::uint32_t known = state.cell(sample, key).set;
    if (known == 0 && column.parts.empty()) {
      state.put_first(sample, key, whole, own);
      continue;
    }
    if (known != 0 && !std::ranges::equal(state.lengths(state.cell(sample, key)), own)) {
      numbered().ownership_.state_->check_lengths(sample, key, own, rank);
    }
    const Holder holder{rank, column.parts.empty() ? SequencePart{} : column.parts[i]};
    state.put(sample, key, sets_.with(known, holder), own);
  }
}

Ownership Claims::take() && {
  number_sets();
  return std::move(ownership_);
}

Claims Claims::numbered() const {
  Claims copy = *this;
  copy.number_sets();
  return copy;
}

void Claims::number_sets() {
  Ownership::State& state = ownership_.own();
  std::vector<std::uint32_t> numbers(sets_.size(), 0);
  state.renumber_sets([&](std::uint32_t set) {
    if (numbers[set] == 0) numbers[set] = state.intern(sets_.holders(set));
    return numbers[set];
  });
}

std::uint32_t Claims::HolderSets::with(std::uint32_t set, const Holder& holder) {
  const Grown grown{set, holder};
  if (answer_ != 0 && grown == asked_) return answer_;
  const auto [found, is_new] = numbers_.try_emplace(grown, static_cast<std::uint32_t>(sets_.size()));
  if (is_new) sets_.push_back(grown);
  asked_ = grown;
  return answer_ = found->second;
}

Holders Claims::HolderSets::holders(std::uint32_t set) const {
  Holders holders;
  for (; set != 0; set = sets_[set].first) holders.push_back(sets_[set].second);
  std::ranges::reverse(holders);
  return holders;
}

void Claims::add_values(int rank, std::uint32_t sample, PlainValues values) {
  Ownership::State& state = *ownership_.state_;
  const PlainValues& known = state.values(sample);
  for (const auto& [name, value] : values) {
    const auto found = known.find(name);
    if (found == known.end() || same_values({*found}, {{name, value}})) continue;
    std::vector<int> others;
    for (const auto& [valued, by] : valued_by_) {
      if (valued == sample) others.push_back(by);
    }
    throw InvalidArgument(fmt::format("sample {} has another value of {} on rank {} than on {} {}",
                                      requested_.id(sample), name, rank, others.size() == 1 ? "rank" : "ranks",
                                      fmt::join(others, ", ")));
  }
  valued_by_.emplace_back(sample, rank);
  state.add_values(sample, std::move(values));
}

}  // namespace levada
