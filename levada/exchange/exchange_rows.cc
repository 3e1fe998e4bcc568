// The encoding of rows, little-endian: keys, parts, and the bytes that each rank sends; then for each row its sender,
// its receivers, its items, and the lengths and contents of their keys; then the plain values of received samples.
#include "levada/exchange/exchange_rows.h"

#include <algorithm>

#include "levada/base/error.h"
#include "levada/exchange/sample_directory_codec.h"

namespace levada {
namespace {

/// Returns the multicasts that each rank sends or receives, ascending.
std::vector<std::vector<std::uint32_t>> multicasts_of_ranks(const ExchangePlan& plan, int ranks) {
  std::vector<std::vector<std::uint32_t>> of_rank(static_cast<std::size_t>(ranks));
  for (std::uint32_t i = 0; i < plan.size(); ++i) {
    of_rank[static_cast<std::size_t>(plan[i].from)].push_back(i);
    for (const int to : plan[i].to) of_rank[static_cast<std::size_t>(to)].push_back(i);
  }
  return of_rank;
}

/// Writes the items of multicasts, one multicast after another.
class ItemsWriter {
 public:
  ItemsWriter(const ExchangePlan& plan, const Contents& contents) : plan_(plan), all_contents_(contents) {}

  void put(ByteWriter& writer, std::span<const ExchangeItem> items) {
    samples_.clear();
    counts_.clear();
    lengths_.clear();
    contents_.clear();
    for (const ExchangeItem& item : items) {
      samples_.push_back(item.sample);
      for_each_key(item.keys, [&](std::size_t k) {
        const auto all = plan_.samples().lengths(item.sample, plan_.keys()[k]);
        counts_.push_back(static_cast<std::uint32_t>(all.size()));
        lengths_.insert(lengths_.end(), all.begin(), all.end());
        contents_.push_back(all_contents_.empty() ? 0 : all_contents_[plan_.keys()[k]][item.sample]);
      });
    }
    const bool is_alike = std::ranges::all_of(
        items, [&](const ExchangeItem& item) { return item.keys == items[0].keys && item.part == items[0].part; });
    keys_.clear();
    parts_.clear();
    for (const ExchangeItem& item : is_alike ? items.first(1) : items) {
      keys_.push_back(item.keys);
      parts_.push_back(item.part);
    }
    put_numbers(writer, samples_);
    put_numbers(writer, keys_);
    put_numbers(writer, parts_);
    put_lengths(writer, counts_, lengths_);
    put_numbers(writer, contents_);
  }

 private:
  const ExchangePlan& plan_;
  const Contents& all_contents_;
  std::vector<std::uint32_t> samples_, counts_;
  std::vector<std::uint64_t> keys_, contents_;
  std::vector<std::uint16_t> parts_;
  std::vector<std::int64_t> lengths_;
};

/// Returns the values of the samples in multicasts that `rank` receives.
Bytes row_values(const ExchangePlan& plan, std::span<const std::uint32_t> multicasts, int rank) {
  std::vector<std::uint32_t> samples;
  for (const std::uint32_t i : multicasts) {
    if (plan[i].from == rank) continue;
    for (const ExchangeItem& item : plan[i].items) {
      if (!plan.samples().values(item.sample).empty()) samples.push_back(item.sample);
    }
  }
  std::ranges::sort(samples);
  samples.erase(std::unique(samples.begin(), samples.end()), samples.end());
  ByteWriter writer;
  writer.put(static_cast<std::uint32_t>(samples.size()));
  for (const std::uint32_t sample : samples) {
    writer.put(sample);
    put_values(writer, plan.samples().values(sample));
  }
  return std::move(writer).take();
}

std::vector<RankRange> ranges_of(std::span<const int> ascending) {
  std::vector<RankRange> ranges;
  for (const int rank : ascending) {
    if (ranges.empty() || ranges.back().end != rank) ranges.push_back({rank, rank});
    ++ranges.back().end;
  }
  return ranges;
}

/// The bytes that several ranks need, encoded once: the head, and each multicast.
class SharedRows {
 public:
  SharedRows(const ExchangePlan& plan, const Contents& contents, int ranks, bool to_all, ByteView before) {
    std::vector<std::uint64_t> sent_by(static_cast<std::size_t>(ranks), 0);
    ItemsWriter items(plan, contents);
    for (std::size_t i = 0; i < plan.size(); ++i) {
      std::uint64_t& sent = sent_by[static_cast<std::size_t>(plan[i].from)];
      multicasts_.put(std::int32_t{plan[i].from});
      multicasts_.put(sent);
      if (!to_all) put_numbers(multicasts_, ranges_of(plan[i].to));
      items.put(multicasts_, plan[i].items);
      ends_.push_back(multicasts_.size());
      sent += plan[i].bytes;
    }
    head_.put_bytes(before);
    head_.put(static_cast<std::uint32_t>(plan.keys().size()));
    for (const std::uint16_t column : plan.keys()) {
      head_.put(static_cast<std::uint8_t>(column != ExchangePlan::no_key));
      if (column != ExchangePlan::no_key) put_key(head_, plan.samples().keys()[column]);
    }
    head_.put(static_cast<std::uint32_t>(plan.parts().size()));
    for (const SequencePart& part : plan.parts()) put_part(head_, part);
    put_numbers(head_, to_all ? sent_by : std::vector<std::uint64_t>());
  }

  Bytes rows(std::span<const std::uint32_t> multicasts, ByteView values) const {
    ByteWriter writer;
    writer.put_bytes(head_.view());
    writer.put(static_cast<std::uint32_t>(multicasts.size()));
    for (const std::uint32_t i : multicasts) {
      const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
      writer.put_bytes(multicasts_.view().subspan(begin, ends_[i] - begin));
    }
    writer.put_bytes(values);
    return std::move(writer).take();
  }

 private:
  ByteWriter head_, multicasts_;
  std::vector<std::size_t> ends_;  ///< by multicast
};

}  // namespace

std::vector<std::shared_ptr<const Bytes>> encode_rows(const ExchangePlan& plan, int ranks, bool to_all, ByteView before,
                                                      const Contents& contents) {
  const SharedRows shared(plan, contents, ranks, to_all, before);
  const auto of_ranks = multicasts_of_ranks(plan, ranks);
  std::vector<std::shared_ptr<const Bytes>> all;
  Bytes last_values;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    Bytes values = row_values(plan, of_ranks[at], rank);
    if (rank > 0 && of_ranks[at] == of_ranks[at - 1] && values == last_values) {
      all.push_back(all.back());
      continue;
    }
    all.push_back(std::make_shared<const Bytes>(shared.rows(of_ranks[at], values)));
    last_values = std::move(values);
  }
  return all;
}

std::vector<int> ExchangeRow::receivers() const {
  std::vector<int> ranks;
  for (const RankRange& range : to) {
    for (int rank = range.begin; rank < range.end; ++rank) ranks.push_back(rank);
  }
  return ranks;
}

namespace {

class RowsReader {
 public:
  RowsReader(ByteView bytes, int rank, int ranks, std::size_t samples, bool to_all)
      : reader_(bytes), rank_(rank), ranks_(ranks), samples_(samples), to_all_(to_all) {}

  ExchangeRows read() {
    for (auto count = reader_.get_count(1); count > 0; --count) {
      const auto is_held = reader_.get<std::uint8_t>();
      if (is_held > 1) reader_.fail("an invalid flag for a key");
      rows_.keys.push_back(is_held == 1 ? get_key(reader_) : SampleKey{});
    }
    if (rows_.keys.size() > 64) reader_.fail("more than 64 keys");
    for (const SampleKey& key : rows_.keys) max_tokens_.push_back(max_tokens(key));
    for (auto count = reader_.get_count(5); count > 0; --count) rows_.parts.push_back(get_part(reader_));
    get_numbers(reader_, rows_.sent_by);
    if (rows_.sent_by.size() != (to_all_ ? static_cast<std::size_t>(ranks_) : 0)) {
      reader_.fail("a wrong number of ranks that send to all");
    }
    for (auto count = reader_.get_count(12); count > 0; --count) read_row();
    for (auto count = reader_.get_count(8); count > 0; --count) {
      const auto sample = reader_.get<std::uint32_t>();
      if (sample >= samples_) reader_.fail("values of a sample that was not requested");
      rows_.values.emplace(sample, get_values(reader_));
    }
    reader_.expect_end();
    return std::move(rows_);
  }

 private:
  void read_row() {
    ExchangeRow row{.from = reader_.get<std::int32_t>()};
    if (row.from < 0 || row.from >= ranks_) reader_.fail("a row of an unknown rank");
    row.begin = reader_.get<std::uint64_t>();
    if (!to_all_) read_receivers(row);
    row.first_item = rows_.items.size();
    row.first_entry = rows_.sizes.size();
    read_items();
    row.end_item = rows_.items.size();
    read_lengths(row);
    const auto end = checked_add(row.begin, row.bytes);
    if (!end || (to_all_ && *end > rows_.sent_by[static_cast<std::size_t>(row.from)])) {
      reader_.fail("more bytes than are sent");
    }
    if (!rows_.rows.empty()) {
      const ExchangeRow& last = rows_.rows.back();
      if (row.from < last.from || (row.from == last.from && row.begin < last.begin + last.bytes)) {
        reader_.fail("rows out of order");
      }
    }
    rows_.rows.push_back(std::move(row));
  }

  void read_receivers(ExchangeRow& row) {
    get_numbers(reader_, row.to);
    std::int32_t last = -1;
    bool is_mine = row.from == rank_;
    for (const RankRange& range : row.to) {
      const auto contains = [&](int rank) { return range.begin <= rank && rank < range.end; };
      if (range.begin <= last || range.end <= range.begin || range.end > ranks_) reader_.fail("an unknown receiver");
      if (contains(row.from)) reader_.fail("a rank that sends to itself");
      is_mine = is_mine || contains(rank_);
      last = range.end;
    }
    if (!is_mine || row.to.empty()) reader_.fail("a row between other ranks");
  }

  void read_items() {
    std::vector<std::uint32_t> samples;
    std::vector<std::uint64_t> keys;
    std::vector<std::uint16_t> parts;
    get_numbers(reader_, samples);
    get_numbers(reader_, keys);
    get_numbers(reader_, parts);
    const bool is_alike = keys.size() == 1;
    const std::size_t expected = is_alike ? 1 : samples.size();
    if (samples.empty() || keys.size() != expected || parts.size() != expected) reader_.fail("truncated items");
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const ExchangeItem item{samples[i], parts[is_alike ? 0 : i], keys[is_alike ? 0 : i]};
      if (item.sample >= samples_ || item.part >= rows_.parts.size() || item.keys == 0) reader_.fail("an unknown item");
      for_each_key(item.keys, [&](std::size_t k) {
        if (k >= rows_.keys.size() || rows_.keys[k].name.empty()) reader_.fail("an unknown key");
      });
      rows_.items.push_back(item);
    }
  }

  void read_lengths(ExchangeRow& row) {
    const Seqlens lengths = get_lengths(reader_);
    std::size_t next = 0;
    for (std::size_t i = row.first_item; i < row.end_item; ++i) {
      for_each_key(rows_.items[i].keys, [&](std::size_t k) {
        if (next == lengths.size()) reader_.fail("fewer lengths than items");
        if (lengths.total(next) > max_tokens_[k]) reader_.fail("lengths that do not fit in memory");
        const auto own = lengths[next++];
        rows_.lengths.push_back(own);
        rows_.sizes.push_back(bytes_of(rows_.keys[k], rows_.parts[rows_.items[i].part], own));
        const auto sum = checked_add(row.bytes, rows_.sizes.back());
        if (!sum) reader_.fail("a number of bytes that overflows");
        row.bytes = *sum;
      });
    }
    row.end_entry = rows_.sizes.size();
    if (next != lengths.size()) reader_.fail("more lengths than items");
    std::vector<std::uint64_t> contents;
    get_numbers(reader_, contents);
    if (contents.size() != next) reader_.fail("different numbers of contents and items");
    rows_.contents.insert(rows_.contents.end(), contents.begin(), contents.end());
  }

  ByteReader reader_;
  int rank_, ranks_;
  std::size_t samples_;
  bool to_all_;
  ExchangeRows rows_;
  std::vector<std::int64_t> max_tokens_;  ///< by key
};

}  // namespace

ExchangeRows decode_rows(ByteView bytes, int rank, int ranks, std::size_t samples, bool to_all) {
  return RowsReader(bytes, rank, ranks, samples, to_all).read();
}

}  // namespace levada
