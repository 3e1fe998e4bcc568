#include "levada/exchange/exchange_streams.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/tree/codec.h"

namespace levada {

OutgoingStream::OutgoingStream(const ExchangePlan& plan, std::size_t multicast, const SampleStore& store)
    : multicast_(multicast), chunk_bytes_(plan.chunk_bytes()), left_(plan[multicast].bytes) {
  const Ownership& samples = plan.samples();
  for (const ExchangeItem& item : plan[multicast].items) {
    const SampleKey& key = samples.keys()[item.key];
    const auto piece = store.find(samples.id(item.sample), key.name);
    if (!piece || !piece->part.is_whole()) {
      throw InvalidArgument(fmt::format("rank {} is to send sample {}, key {}, but does not hold it",
                                        plan[multicast].from, samples.id(item.sample), key.name));
    }
    if (piece->key != key || !std::ranges::equal(piece->lengths, samples.lengths(item.sample, item.key))) {
      throw InvalidArgument(fmt::format("rank {} holds sample {}, key {} in another form than the plan says",
                                        plan[multicast].from, samples.id(item.sample), key.name));
    }
    append(plan, item, *piece);
    owners_.push_back(piece->bytes.owner);
  }
}

void OutgoingStream::append(const ExchangePlan& plan, const ExchangeItem& item, const SampleStore::Piece& piece) {
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    if (begin < end) runs_.push_back({piece.bytes.data + begin, end - begin});
  };
  const SequencePart& part = plan.parts()[item.part];
  if (part.is_whole()) return add(0, plan.bytes(item));
  const std::uint64_t token = piece.key.bytes(1).value_or(0);
  std::uint64_t start = 0;
  for (const std::int64_t length : piece.lengths) {
    const TokenRuns runs = tokens_in(part, length);
    add((start + runs.begin) * token, (start + runs.end) * token);
    add((start + runs.second_begin) * token, (start + runs.second_end) * token);
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

IncomingStream::IncomingStream(const ExchangePlan& plan, std::size_t multicast, SampleStore& store, CopyWay way)
    : plan_(plan), multicast_(multicast), store_(store), way_(way), left_(plan[multicast].bytes) {
  const auto items = plan[multicast].items;
  rooms_.reserve(items.size());
  for (std::size_t first = 0; first < items.size();) {  // the keys of a sample lie together
    std::uint64_t size = 0;
    std::size_t end = first;
    for (; end < items.size() && items[end].sample == items[first].sample; ++end) {
      rooms_.push_back({nullptr, {}, plan.bytes(items[end])});
      size += align_up(rooms_.back().bytes, leaf_alignment);
    }
    const auto memory = store.allocate(size);
    std::byte* data = memory.data;
    for (; first < end; ++first) {
      rooms_[first].data = data;
      rooms_[first].owner = memory.owner;
      data += align_up(rooms_[first].bytes, leaf_alignment);
    }
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
    copy_payload(room.data + at_, message.data(), now, way_);
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
                        {room.data, std::move(room.owner)}});
  }
  if (!arrivals.empty()) store_.take_over(arrivals);
}

}  // namespace levada
