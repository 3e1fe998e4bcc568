#include "levada/exchange/exchange_streams.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/tree/codec.h"

namespace levada {

namespace {

/// Items that lie together in one memory have at most so much: what one of them that stays keeps of those that go.
constexpr std::uint64_t most_together = std::uint64_t{64} << 10;

/// Finds what a plan's items are in a store. Neighbours are mostly keys of one sample.
class Finder {
 public:
  Finder(const ExchangePlan& plan, const SampleStore::Reading& here)
      : samples_(plan.samples()), here_(here), columns_(samples_.keys().size()) {
    for (std::size_t key = 0; key < columns_.size(); ++key) {
      for (const SampleStore::Column& column : here.columns()) {
        if (column.key.name == samples_.keys()[key].name) columns_[key].push_back(&column);
      }
    }
  }

  struct Found {
    const SampleKey& key;
    const SampleStore::Entry& entry;
  };
  std::optional<Found> find(const ExchangeItem& item) {
    if (item.sample != sample_) {
      sample_ = item.sample;
      number_ = here_.find(samples_.id(item.sample), samples_.id_hash(item.sample));
    }
    if (!number_) return std::nullopt;
    for (const SampleStore::Column* column : columns_[item.key]) {
      const SampleStore::Entry& entry = column->entries[*number_];
      if (entry.is_here) return Found{column->key, entry};
    }
    return std::nullopt;
  }

 private:
  const Ownership& samples_;
  const SampleStore::Reading& here_;
  std::vector<std::vector<const SampleStore::Column*>> columns_;  ///< of a key's name
  std::optional<std::uint32_t> sample_;
  std::optional<std::size_t> number_;
};

}  // namespace

OutgoingStream::OutgoingStream(const ExchangePlan& plan, std::size_t number, const SampleStore::Reading& here)
    : multicast_(number), chunk_bytes_(plan.chunk_bytes()), left_(plan[number].bytes) {
  const Ownership& samples = plan.samples();
  const Multicast multicast = plan[number];
  Finder finder(plan, here);
  runs_.reserve(multicast.items.size());
  owners_.reserve(multicast.items.size());
  for (const ExchangeItem& item : multicast.items) {
    const SampleKey& key = samples.keys()[item.key];
    const auto found = finder.find(item);
    if (!found || !found->entry.part.is_whole()) {
      throw InvalidArgument(fmt::format("rank {} is to send sample {}, key {}, but does not hold it", multicast.from,
                                        samples.id(item.sample), key.name));
    }
    if (found->key != key || !std::ranges::equal(found->entry.lengths.all(), samples.lengths(item.sample, item.key))) {
      throw InvalidArgument(fmt::format("rank {} holds sample {}, key {} in another form than the plan says",
                                        multicast.from, samples.id(item.sample), key.name));
    }
    append(plan, item, found->entry);
  }
}

void OutgoingStream::append(const ExchangePlan& plan, const ExchangeItem& item, const SampleStore::Entry& entry) {
  if (owners_.empty() || owners_.back() != entry.bytes.owner) owners_.push_back(entry.bytes.owner);
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    if (begin < end) runs_.push_back({entry.bytes.data + begin, end - begin});
  };
  const SequencePart& part = plan.parts()[item.part];
  if (part.is_whole()) return add(0, entry.size);
  const std::uint64_t token = plan.samples().keys()[item.key].bytes(1).value_or(0);
  std::uint64_t start = 0;
  for (const std::int64_t length : entry.lengths.all()) {
    const TokenRanges ranges = tokens_in(part, length);
    add((start + ranges.begin) * token, (start + ranges.end) * token);
    add((start + ranges.second_begin) * token, (start + ranges.second_end) * token);
    start += length;
  }
}

void OutgoingStream::read(std::byte* to) {
  std::uint64_t bytes = next_bytes();
  left_ -= bytes;
  while (bytes > 0) {
    const ByteView rest = runs_[run_].subspan(at_);
    const std::size_t now = std::min<std::uint64_t>(bytes, rest.size());
    copy_payload(to, rest.data(), now);
    to += now;
    bytes -= now;
    at_ += now;
    if (at_ < runs_[run_].size()) continue;
    ++run_;
    at_ = 0;
  }
}

IncomingStream::IncomingStream(const ExchangePlan& plan, std::size_t multicast, SampleStore& store, CopyMode mode)
    : plan_(plan), multicast_(multicast), store_(store), mode_(mode), left_(plan[multicast].bytes) {
  const auto items = plan[multicast].items;
  rooms_.reserve(items.size());
  std::uint64_t together = 0;
  for (const ExchangeItem& item : items) {  // more than most_together has a memory of its own
    const std::uint64_t size = align_up(plan.bytes(item), leaf_alignment);
    if (together + size > most_together) {
      make_rooms(together, rooms_.size());
      together = 0;
    }
    rooms_.push_back({nullptr, {}, plan.bytes(item)});
    together += size;
  }
  make_rooms(together, rooms_.size());
}

void IncomingStream::make_rooms(std::uint64_t size, std::size_t end) {
  if (rooms_made_ == end) return;
  const auto memory = store_.allocate(size);
  std::byte* data = memory.data;
  for (; rooms_made_ < end; ++rooms_made_) {
    rooms_[rooms_made_].data = data;
    rooms_[rooms_made_].owner = memory.owner;
    data += align_up(rooms_[rooms_made_].bytes, leaf_alignment);
  }
}

void IncomingStream::write(ByteView message) {
  if (message.size() != std::min(plan_.chunk_bytes(), left_)) {
    throw CorruptMessage(message.size(),
                         fmt::format("a message of an exchange from rank {} has {} bytes, not {}",
                                     plan_[multicast_].from, message.size(), std::min(plan_.chunk_bytes(), left_)));
  }
  left_ -= message.size();
  while (!message.empty()) {
    Room& room = rooms_[room_];
    const std::size_t now = std::min<std::uint64_t>(message.size(), room.bytes - at_);
    copy_payload(room.data + at_, message.data(), now, mode_);
    message = message.subspan(now);
    at_ += now;
    if (at_ < room.bytes) continue;
    ++room_;
    at_ = 0;
  }
  take_over_complete();
}

void IncomingStream::take_over_complete() {
  while (room_ < rooms_.size() && rooms_[room_].bytes == 0) ++room_;
  const auto items = plan_[multicast_].items;
  const Ownership& samples = plan_.samples();
  std::vector<SampleStore::Arrival> arrivals;
  arrivals.reserve(room_ - taken_);
  for (; taken_ < room_; ++taken_) {
    const ExchangeItem& item = items[taken_];
    Room& room = rooms_[taken_];
    arrivals.push_back({samples.id(item.sample),
                        samples.values(item.sample),
                        samples.keys()[item.key],
                        samples.lengths(item.sample, item.key),
                        plan_.parts()[item.part],
                        {room.data, std::move(room.owner)},
                        room.bytes});
  }
  if (!arrivals.empty()) store_.take_over(arrivals);
}

}  // namespace levada
