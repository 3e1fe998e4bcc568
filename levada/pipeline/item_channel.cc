#include "levada/pipeline/item_channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "levada/base/copy.h"
#include "levada/base/error.h"

namespace levada::pipeline {
namespace {

constexpr std::uint32_t message_magic = 0x4c505031;  // LPP1
constexpr std::size_t prefix_bytes = 8;
constexpr std::size_t alignment = 64;

/// Allocates private memory to copy buffers into.
std::shared_ptr<std::byte> aligned_memory(std::size_t bytes) {
  constexpr auto align = std::align_val_t{alignment};
  auto* memory = static_cast<std::byte*>(::operator new(std::max<std::size_t>(bytes, 1), align));
  return {memory, [](std::byte* data) { ::operator delete(data, align); }};
}

std::size_t laid_out(std::size_t at, std::span<const ByteView> buffers) {
  for (const ByteView buffer : buffers) at = align_up(at, alignment) + buffer.size();
  return at;
}

void put(std::span<std::byte> memory, std::size_t& at, ByteView bytes) {
  copy_payload(memory.data() + at, bytes.data(), bytes.size());
  at += bytes.size();
}

}  // namespace

// ---- ItemMessage

std::size_t ItemMessage::bytes(ByteView header, const ItemTraits::Packed& packed) {
  return laid_out(prefix_bytes + header.size() + packed.head.size(), packed.buffers);
}

void ItemMessage::write(std::span<std::byte> memory, ByteView header, const ItemTraits::Packed& packed) {
  ByteWriter prefix;
  prefix.put(message_magic);
  prefix.put(static_cast<std::uint32_t>(header.size()));
  prefix.put_bytes(header);
  std::ranges::copy(prefix.view(), memory.begin());
  std::size_t at = prefix.size();
  put(memory, at, packed.head);
  for (const ByteView buffer : packed.buffers) {
    at = align_up(at, alignment);
    put(memory, at, buffer);
  }
}

ItemMessage ItemMessage::read(ByteView message) {
  ByteReader reader(message);
  if (reader.get<std::uint32_t>() != message_magic) reader.fail("this is not a message of a pipeline");
  auto header = decode<Header>(reader.get_sized());
  std::size_t at = message.size() - reader.remaining();
  const auto take = [&](std::uint64_t bytes) {
    if (at > message.size() || bytes > message.size() - at)
      reader.fail(fmt::format("a field of {} bytes exceeds the message", bytes));
    const auto taken = message.subspan(at, bytes);
    at += bytes;
    return taken;
  };
  ItemMessage parts{.number = header.number, .items = std::move(header.items), .head = take(header.head_bytes)};
  for (const auto bytes : header.buffer_bytes) {
    at = align_up(at, alignment);
    parts.buffers.push_back(take(bytes));
  }
  return parts;
}

// ---- EdgeChannels

EdgeChannels::EdgeChannels(Engine& engine, int from, int to, const EdgeOptions& options) {
  const auto window = static_cast<int>(std::clamp<std::int64_t>(options.messages, 1, 1024));
  share_ = options.bytes / static_cast<std::size_t>(window);
  channels_ = {engine.open(from, {to}, window), engine.open(from, {to}, 1)};
}

// ---- ItemSender

ItemSender::ItemSender(std::shared_ptr<Engine> engine, int to, const EdgeOptions& options, Traffic& traffic)
    : engine_(std::move(engine)),
      channels_(*engine_, engine_->info().rank, to, options),
      max_bytes_(options.bytes),
      traffic_(traffic) {}

void ItemSender::put(std::span<const Item> items, const ItemTraits& traits, const Header& header) {
  put_part(items, traits, header, 0, items.size());
}

void ItemSender::put_part(std::span<const Item> items, const ItemTraits& traits, const Header& header,
                          std::size_t begin, std::size_t end) {
  const bool divisible = end - begin > 1;
  const auto put_halves = [&] {
    const std::size_t middle = begin + (end - begin) / 2;
    put_part(items, traits, header, begin, middle);
    put_part(items, traits, header, middle, end);
  };
  Pending pending;
  try {
    if (begin < end) pending.packed = traits.pack(items.subspan(begin, end - begin));
  } catch (const std::exception&) {
    if (!divisible) throw CannotPack{begin, std::current_exception()};
    return put_halves();
  }
  pending.payload = pending.packed.head.size();
  for (const ByteView buffer : pending.packed.buffers) pending.payload += buffer.size();
  if (divisible && pending.payload > max_bytes_) return put_halves();
  ItemMessage::Header whole{
      .number = sent_ + pending_.size(), .items = header(begin, end), .head_bytes = pending.packed.head.size()};
  for (const ByteView buffer : pending.packed.buffers) whole.buffer_bytes.push_back(buffer.size());
  pending.header = encode(whole);
  pending.bytes = ItemMessage::bytes(pending.header, pending.packed);
  bytes_ += pending.payload;
  pending_.push_back(std::move(pending));
}

bool ItemSender::fill(Pending& pending) {
  auto block = engine_->try_allocate(pending.bytes);
  if (!block) return false;
  ItemMessage::write(block->memory(), pending.header, pending.packed);
  pending.block = *std::move(block);
  pending.packed = {};
  traffic_.copied.fetch_add(pending.payload, std::memory_order_relaxed);
  traffic_.bytes.fetch_add(pending.payload, std::memory_order_relaxed);
  return true;
}

bool ItemSender::try_send() {
  for (; !pending_.empty(); pending_.pop_front()) {
    Pending& pending = pending_.front();
    if (!pending.block && !fill(pending)) return false;
    if (!engine_->try_publish(channels_.channel_for(pending.bytes), pending.block, pending.bytes)) return false;
    ++sent_;
    traffic_.messages.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

ItemSender::Needs ItemSender::needs() const {
  if (pending_.empty()) return {};
  const Pending& pending = pending_.front();
  if (!pending.block) return {.memory = pending.bytes};
  return {.room = &channels_.channel_for(pending.bytes)};
}

// ---- ItemReceiver

ItemReceiver::ItemReceiver(std::shared_ptr<Engine> engine, int from, const EdgeOptions& options, Traffic& traffic)
    : engine_(std::move(engine)),
      channels_(*engine_, from, engine_->info().rank, options),
      max_held_(options.bytes),
      traffic_(traffic) {}

std::optional<ItemReceiver::Arrival> ItemReceiver::try_receive() {
  for (std::size_t i = 0; i < early_.size(); ++i) {
    if (!early_[i]) {
      Received received = engine_->try_receive(channels_.channel(i));
      ended_ = ended_ || received.ended;
      if (!received.message) continue;
      early_[i] =
          Arrival{ItemMessage::read(received.message->bytes), *std::move(received.message), &channels_.channel(i)};
    }
    if (early_[i]->number != received_) continue;
    ++received_;
    return std::exchange(early_[i], std::nullopt);
  }
  return std::nullopt;
}

std::vector<Channel*> ItemReceiver::channels() const {
  std::vector<Channel*> channels;
  for (std::size_t i = 0; i < early_.size(); ++i) {
    if (!early_[i]) channels.push_back(&channels_.channel(i));
  }
  return channels;
}

std::shared_ptr<const void> ItemReceiver::counted(std::shared_ptr<const void> hold, std::size_t bytes) {
  held_->fetch_add(bytes, std::memory_order_relaxed);
  const void* that = hold.get();
  return {that, [hold = std::move(hold), held = held_, bytes](const void*) mutable {
            hold.reset();
            held->fetch_sub(bytes, std::memory_order_relaxed);
          }};
}

std::vector<Item> ItemReceiver::unpack(Arrival arrival, const ItemTraits& traits) {
  const std::size_t count = arrival.items.count;
  if (count == 0) return {};
  auto items = unpack_some(std::move(arrival), traits);
  if (items.size() == count) return items;
  throw CorruptMessage(0, fmt::format("a message of {} items announces {}", items.size(), count));
}

std::vector<Item> ItemReceiver::unpack_some(Arrival arrival, const ItemTraits& traits) {
  Lease& lease = arrival.lease;
  const ItemMessage& parts = arrival;
  if (parts.buffers.empty()) return traits.unpack(parts.head, {}, nullptr);

  const std::byte* const received = lease.bytes.data();
  const std::size_t size = lease.bytes.size();
  std::vector<std::span<std::byte>> buffers;
  const auto lay = [&](std::byte* to, const std::byte* from) {
    for (const ByteView buffer : parts.buffers) buffers.emplace_back(to + (buffer.data() - from), buffer.size());
  };
  const bool held_too_long = held_->load(std::memory_order_relaxed) >= max_held_;
  const auto view = held_too_long ? std::span<std::byte>() : engine_->make_private(*arrival.channel, lease);
  if (!view.empty()) {
    lay(view.data(), received);
    return traits.unpack(parts.head, buffers, counted(std::move(lease.hold), size));
  }
  const auto first = static_cast<std::size_t>(parts.buffers.front().data() - received);
  const std::shared_ptr<std::byte> memory = aligned_memory(size - first);
  copy_payload(memory.get(), received + first, size - first);
  traffic_.copied.fetch_add(size - first, std::memory_order_relaxed);
  lay(memory.get(), received + first);
  return traits.unpack(parts.head, buffers, memory);
}

}  // namespace levada::pipeline
