#include "levada/exchange/exchange_streams.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "levada/base/assert.h"
#include "levada/base/error.h"
#include "levada/exchange/sample_directory_codec.h"

namespace levada {
namespace {

/// Returns the store's columns for the rows' keys; null for a key that it lacks.
std::vector<const SampleStore::Column*> columns_of(const ExchangeRows& rows, const SampleStore::Reading& here) {
  std::vector<const SampleStore::Column*> columns(rows.keys.size());
  for (std::size_t k = 0; k < columns.size(); ++k) {
    for (const SampleStore::Column& column : here.columns()) {
      if (column.key == rows.keys[k]) columns[k] = &column;
    }
  }
  return columns;
}

/// Returns the number of a sample in the store.
std::optional<std::size_t> row_of(std::uint32_t sample, const SampleIndex& index, const Holdings& holdings,
                                  const SampleStore::Reading& here) {
  if (here.version() != holdings.version) return here.find(index.id(sample), index.hash(sample));
  const auto found = std::ranges::lower_bound(holdings.samples, sample, {}, &Holdings::Sample::number);
  if (found == holdings.samples.end() || found->number != sample) return std::nullopt;
  return found->row;
}

}  // namespace

OutgoingStream::OutgoingStream(const ExchangeRows& rows, std::span<const ExchangeRow> sent, const SampleIndex& index,
                               const Holdings& holdings, const SampleStore::Reading& here) {
  const auto columns = columns_of(rows, here);
  std::uint32_t sample = no_sample;
  std::optional<std::size_t> place;  // of the sample, in the store
  for (const ExchangeRow& row : sent) {
    left_ += row.bytes;
    rows.for_each_entry(row, [&](const ExchangeItem& item, std::size_t key, std::size_t number) {
      if (item.sample != sample) place = row_of(sample = item.sample, index, holdings, here);
      const auto* entry = place && columns[key] != nullptr ? &columns[key]->entries[*place] : nullptr;
      if (entry == nullptr || !entry->is_here || !entry->part.is_whole() ||
          !std::ranges::equal(entry->lengths.all(), rows.lengths[number]) || entry->content != rows.contents[number]) {
        throw InvalidArgument(
            fmt::format("rank {} cannot send sample {}, key {}: its store changed during the exchange", row.from,
                        index.id(item.sample), rows.keys[key].name));
      }
      append(rows, item, key, *entry);
    });
  }
}

void OutgoingStream::append(const ExchangeRows& rows, const ExchangeItem& item, std::size_t key,
                            const SampleStore::Entry& entry) {
  // The keys of a sample are mostly in different memory blocks, each of which also has the same key of the previous
  // sample.
  const auto last = owners_->end() - std::min<std::ptrdiff_t>(8, std::ssize(*owners_));
  if (std::find(last, owners_->end(), entry.bytes.owner) == owners_->end()) owners_->push_back(entry.bytes.owner);
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    if (begin < end) runs_.push_back({entry.bytes.data + begin, end - begin});
  };
  const SequencePart& part = rows.parts[item.part];
  if (part.is_whole()) return add(0, entry.size);
  const std::uint64_t token = rows.keys[key].bytes(1).value_or(0);
  std::uint64_t start = 0;
  for (const std::int64_t length : entry.lengths.all()) {
    const TokenRanges ranges = tokens_in(part, length);
    add((start + ranges.begin) * token, (start + ranges.end) * token);
    add((start + ranges.second_begin) * token, (start + ranges.second_end) * token);
    start += length;
  }
}

std::vector<MessageRun> OutgoingStream::next_runs(const Engine& engine, std::uint64_t max_carried) const {
  constexpr std::size_t max_runs = std::size_t{1} << 16;  // at most 1 MiB of runs
  constexpr std::size_t min_referenced = 64;              // viewing fewer bytes is slower than copying them twice
  std::vector<MessageRun> runs;
  const bool is_shared = engine.shares_memory();
  std::uint64_t at = at_;
  for (std::size_t run = run_; run < runs_.size() && runs.size() < max_runs; ++run, at = 0) {
    const ByteView rest = runs_[run].subspan(at);
    if (const auto position = is_shared && rest.size() >= min_referenced ? engine.position_of(rest) : std::nullopt) {
      runs.push_back({*position, rest.size()});
      continue;
    }
    const std::uint64_t now = std::min<std::uint64_t>(rest.size(), max_carried);
    if (now == 0) break;
    max_carried -= now;
    if (runs.empty() || runs.back().position != MessageRun::carried) runs.emplace_back();
    runs.back().size += now;
    if (now < rest.size()) break;
  }
  return runs;
}

OutgoingMessage OutgoingStream::next(Engine& engine, std::uint64_t max_carried) {
  const std::vector<MessageRun> runs = next_runs(engine, max_carried);
  ByteWriter header;
  put_numbers(header, runs);
  OutgoingMessage message{.size = header.size()};
  for (const MessageRun& run : runs) {
    if (run.position == MessageRun::carried) message.size += run.size;
    else message.referenced = owners_;
  }
  auto block = engine.try_allocate(message.size);
  if (!block) return message;
  std::span<std::byte> to = block->memory();
  std::memcpy(to.data(), header.view().data(), header.size());  // not payload: the runs
  to = to.subspan(header.size());
  for (const MessageRun& run : runs) {
    for (std::uint64_t left = run.size; left > 0;) {
      const ByteView rest = runs_[run_].subspan(at_);
      const std::size_t now = std::min<std::uint64_t>(left, rest.size());
      if (run.position == MessageRun::carried) {
        copy_payload(to.data(), rest.data(), now);
        to = to.subspan(now);
      }
      left -= now;
      at_ += now;
      if (at_ < runs_[run_].size()) continue;
      ++run_;
      at_ = 0;
    }
    message.payload += run.size;
  }
  LEVADA_ASSERT(message.payload <= left_, "a stream sends no more than its rows have");
  LEVADA_ASSERT((message.payload == left_) == (run_ == runs_.size()), "a stream ends with its last run");
  left_ -= message.payload;
  message.block = std::move(*block);
  return message;
}

bool OutgoingMessage::try_publish(Engine& engine, Channel& channel) {
  if (!referenced) return engine.try_publish(channel, block, size);
  struct Hold {
    Block block;
    std::shared_ptr<const void> referenced;
  };
  const ByteView bytes = block.memory().first(size);
  const auto hold = std::make_shared<Hold>(Hold{std::move(block), std::move(referenced)});
  if (engine.try_publish(channel, Lease{bytes, hold})) return true;
  block = std::move(hold->block);
  referenced = std::move(hold->referenced);
  return false;
}

std::vector<ByteView> runs_of(const Engine& engine, int from, ByteView message, std::uint64_t max_bytes) {
  ByteReader reader(message);
  // Copies before checking, because the sender can still write to the memory of its message.
  std::vector<MessageRun> runs;
  get_numbers(reader, runs);
  const auto fail_run = [&](std::uint64_t bytes) {
    reader.fail(fmt::format("a run of {} bytes from rank {}", bytes, from));
  };
  std::uint64_t begin = UINT64_MAX, end = 0;  // the range of all references, for a single view
  for (const MessageRun& run : runs) {
    if (run.size > max_bytes) fail_run(run.size);
    max_bytes -= run.size;
    if (run.position == MessageRun::carried) continue;
    begin = std::min(begin, run.position);
    end = std::max(end, checked_add(run.position, run.size).value_or(UINT64_MAX));
  }
  const auto memory = end > 0 ? engine.view(from, begin, end - begin) : ByteView();
  if (!memory) fail_run(end - begin);
  ByteView carried = message.subspan(reader.offset());
  std::vector<ByteView> views;
  views.reserve(runs.size());
  for (const MessageRun& run : runs) {
    if (run.position != MessageRun::carried) {
      views.push_back(memory->subspan(run.position - begin, run.size));
      continue;
    }
    if (run.size > carried.size()) fail_run(run.size);
    views.push_back(carried.first(run.size));
    carried = carried.subspan(run.size);
  }
  if (!carried.empty()) reader.fail(fmt::format("{} bytes too many from rank {}", carried.size(), from));
  return views;
}

IncomingRow::IncomingRow(const ExchangeRows& rows, const ExchangeRow& row, const SampleIndex& index, SampleStore& store,
                         CopyMode mode)
    : row_(&row), store_(&store), mode_(mode) {
  static const PlainValues no_values;
  const auto sizes = rows.sizes_of(row);
  auto memory = store.allocate(sizes);
  items_.reserve(sizes.size());
  memory_.reserve(sizes.size());
  rows.for_each_entry(row, [&](const ExchangeItem& item, std::size_t key, std::size_t entry) {
    const auto values = rows.values.find(item.sample);
    BufferPool::Buffer& own = memory[items_.size()];
    memory_.push_back(own.data);
    items_.push_back({index.id(item.sample),
                      index.hash(item.sample),
                      values == rows.values.end() ? no_values : values->second,
                      rows.keys[key],
                      rows.lengths[entry],
                      rows.parts[item.part],
                      {own.data, std::move(own.owner)},
                      rows.sizes[entry],
                      rows.contents[entry]});
  });
  commit();
}

void IncomingRow::write(ByteView bytes) {
  while (!bytes.empty()) {
    LEVADA_ASSERT(item_ < items_.size(), "a row receives no more bytes than it has");
    const std::uint64_t size = items_[item_].size;
    const std::size_t now = std::min<std::uint64_t>(bytes.size(), size - at_);
    copy_payload(memory_[item_] + at_, bytes.data(), now, mode_);
    bytes = bytes.subspan(now);
    at_ += now;
    if (at_ < size) continue;
    ++item_;
    at_ = 0;
  }
}

void IncomingRow::commit() {
  while (item_ < items_.size() && items_[item_].size == 0) ++item_;
  if (committed_ == item_) return;
  const std::size_t first = std::exchange(committed_, item_);
  store_->commit(std::span(items_).subspan(first, item_ - first));
}

}  // namespace levada
