#include "levada/pipeline/carrier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "levada/base/copy.h"
#include "levada/base/error.h"

namespace levada::pipeline {
namespace {

constexpr std::uint32_t magic = 0x4c505031;  // LPP1
constexpr std::size_t prefix_bytes = 32;
constexpr std::size_t number_offset = 8;
constexpr std::size_t alignment = 64;

/// Memory of this process's own, for buffers to be laid in.
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

std::size_t ItemMessage::bytes(std::size_t protocol_bytes, const Values::Packed& packed) {
  const std::size_t before = prefix_bytes + protocol_bytes + 8 * packed.buffers.size() + packed.head.size();
  return laid_out(before, packed.buffers);
}

void ItemMessage::write(std::span<std::byte> memory, ByteView protocol, const Values::Packed& packed) {
  ByteWriter prefix;
  prefix.put(magic);
  prefix.put(static_cast<std::uint32_t>(protocol.size()));
  prefix.put(std::uint64_t{0});
  prefix.put(static_cast<std::uint64_t>(packed.head.size()));
  prefix.put(static_cast<std::uint64_t>(packed.buffers.size()));
  std::ranges::copy(prefix.view(), memory.begin());
  std::ranges::copy(protocol, memory.begin() + prefix_bytes);
  std::size_t at = prefix_bytes + protocol.size();
  for (const ByteView buffer : packed.buffers) {
    const std::uint64_t size = buffer.size();
    std::memcpy(memory.data() + at, &size, sizeof(size));
    at += sizeof(size);
  }
  put(memory, at, packed.head);
  for (const ByteView buffer : packed.buffers) {
    at = align_up(at, alignment);
    put(memory, at, buffer);
  }
}

void ItemMessage::number(std::span<std::byte> memory, std::uint64_t number) {
  std::memcpy(memory.data() + number_offset, &number, sizeof(number));
}

std::uint64_t ItemMessage::number_of(ByteView message) {
  ByteReader reader(message.first(std::min(message.size(), prefix_bytes)));
  if (reader.get<std::uint32_t>() != magic) reader.fail("this is no message of a pipeline");
  static_cast<void>(reader.get<std::uint32_t>());
  return reader.get<std::uint64_t>();
}

ItemMessage ItemMessage::read(ByteView message) {
  ByteReader reader(message);
  if (reader.get<std::uint32_t>() != magic) reader.fail("this is no message of a pipeline");
  const auto protocol_bytes = reader.get<std::uint32_t>();
  static_cast<void>(reader.get<std::uint64_t>());
  const auto head_bytes = reader.get<std::uint64_t>();
  const auto buffer_count = reader.get<std::uint64_t>();
  if (protocol_bytes > reader.remaining()) reader.fail("it is cut short");
  const std::size_t sizes_at = prefix_bytes + protocol_bytes;
  if (buffer_count > (message.size() - sizes_at) / 8) reader.fail(fmt::format("{} buffers", buffer_count));
  const std::size_t head_at = sizes_at + 8 * buffer_count;
  if (head_bytes > message.size() - head_at) reader.fail("it is cut short");

  ItemMessage parts;
  parts.items = decode<protocol::Items>(message.subspan(prefix_bytes, protocol_bytes));
  parts.head = message.subspan(head_at, head_bytes);
  ByteReader sizes(message.subspan(sizes_at, 8 * buffer_count), sizes_at);
  std::size_t at = head_at + head_bytes;
  for (std::uint64_t i = 0; i < buffer_count; ++i) {
    const auto size = sizes.get<std::uint64_t>();
    at = align_up(at, alignment);
    if (at > message.size() || size > message.size() - at) sizes.fail(fmt::format("a buffer of {} bytes", size));
    parts.buffers.push_back(message.subspan(at, size));
    at += size;
  }
  return parts;
}

// ---- EdgeChannels

EdgeChannels::EdgeChannels(Engine& engine, int from, int to, const EdgeOptions& options) {
  const auto window = static_cast<int>(std::clamp<std::int64_t>(options.messages, 1, 1024));
  share_ = options.bytes / static_cast<std::size_t>(window);
  channels_ = {engine.open(from, {to}, window), engine.open(from, {to}, 1)};
}

// ---- Outgoing

Outgoing::Outgoing(std::shared_ptr<Engine> engine, int to, const EdgeOptions& options, Traffic& traffic)
    : engine_(std::move(engine)),
      channels_(*engine_, engine_->info().rank, to, options),
      most_bytes_(options.bytes),
      traffic_(traffic) {}

void Outgoing::put(std::span<const Item> items, const Values& values, const Header& header) {
  put_part(items, values, header, 0, items.size());
}

void Outgoing::put_part(std::span<const Item> items, const Values& values, const Header& header, std::size_t begin,
                        std::size_t end) {
  const bool divisible = end - begin > 1;
  const auto put_halves = [&] {
    const std::size_t middle = begin + (end - begin) / 2;
    put_part(items, values, header, begin, middle);
    put_part(items, values, header, middle, end);
  };
  Pending pending;
  try {
    if (begin < end) pending.packed = values.pack(items.subspan(begin, end - begin));
  } catch (const std::exception&) {
    if (!divisible) throw CannotPack{begin, std::current_exception()};
    return put_halves();
  }
  pending.payload = pending.packed.head.size();
  for (const ByteView buffer : pending.packed.buffers) pending.payload += buffer.size();
  if (divisible && pending.payload > most_bytes_) return put_halves();
  pending.protocol = encode(header(begin, end));
  pending.bytes = ItemMessage::bytes(pending.protocol.size(), pending.packed);
  bytes_ += pending.payload;
  pending_.push_back(std::move(pending));
}

bool Outgoing::fill(Pending& pending) {
  auto block = engine_->try_allocate(pending.bytes);
  if (!block) return false;
  ItemMessage::write(block->memory(), pending.protocol, pending.packed);
  pending.block = *std::move(block);
  pending.packed = {};
  traffic_.copied.fetch_add(pending.payload, std::memory_order_relaxed);
  traffic_.bytes.fetch_add(pending.payload, std::memory_order_relaxed);
  return true;
}

bool Outgoing::try_send() {
  for (; !pending_.empty(); pending_.pop_front()) {
    Pending& pending = pending_.front();
    if (!pending.block && !fill(pending)) return false;
    ItemMessage::number(pending.block.memory(), sent_);
    if (!engine_->try_publish(channels_.channel_for(pending.bytes), pending.block, pending.bytes)) return false;
    ++sent_;
    traffic_.messages.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

Outgoing::Needs Outgoing::needs() const {
  if (pending_.empty()) return {};
  const Pending& pending = pending_.front();
  if (!pending.block) return {.memory = pending.bytes};
  return {.room = &channels_.channel_for(pending.bytes)};
}

// ---- Incoming

Incoming::Incoming(std::shared_ptr<Engine> engine, int from, const EdgeOptions& options, Traffic& traffic)
    : engine_(std::move(engine)),
      channels_(*engine_, from, engine_->info().rank, options),
      most_held_(options.bytes),
      traffic_(traffic) {}

std::optional<Incoming::Arrival> Incoming::try_receive() {
  for (std::size_t i = 0; i < early_.size(); ++i) {
    if (!early_[i]) {
      Received received = engine_->try_receive(channels_.channel(i));
      ended_ = ended_ || received.ended;
      early_[i] = std::move(received.message);
    }
    if (!early_[i] || ItemMessage::number_of(early_[i]->bytes) != received_) continue;
    ++received_;
    Lease lease = *std::exchange(early_[i], std::nullopt);
    Arrival arrival{.items = ItemMessage::read(lease.bytes).items, .channel = &channels_.channel(i)};
    arrival.lease = std::move(lease);
    return arrival;
  }
  return std::nullopt;
}

std::vector<Channel*> Incoming::channels() const {
  std::vector<Channel*> channels;
  for (std::size_t i = 0; i < early_.size(); ++i) {
    if (!early_[i]) channels.push_back(&channels_.channel(i));
  }
  return channels;
}

std::shared_ptr<const void> Incoming::counted(std::shared_ptr<const void> hold, std::size_t bytes) {
  held_->fetch_add(bytes, std::memory_order_relaxed);
  const void* that = hold.get();
  return {that, [hold = std::move(hold), held = held_, bytes](const void*) mutable {
            hold.reset();
            held->fetch_sub(bytes, std::memory_order_relaxed);
          }};
}

std::vector<Item> Incoming::unpack(Arrival arrival, const Values& values) {
  const std::size_t count = arrival.items.count;
  if (count == 0) return {};
  auto items = unpack_some(std::move(arrival), values);
  if (items.size() == count) return items;
  throw CorruptMessage(0, fmt::format("a message of {} items counts {}", items.size(), count));
}

std::vector<Item> Incoming::unpack_some(Arrival arrival, const Values& values) {
  Lease& lease = arrival.lease;
  const ItemMessage parts = ItemMessage::read(lease.bytes);
  if (parts.buffers.empty()) return values.unpack(parts.head, {}, nullptr);

  const std::byte* const received = lease.bytes.data();
  const std::size_t size = lease.bytes.size();
  std::vector<std::span<std::byte>> buffers;
  const auto lay = [&](std::byte* to, const std::byte* from) {
    for (const ByteView buffer : parts.buffers) buffers.emplace_back(to + (buffer.data() - from), buffer.size());
  };
  const bool held_too_long = held_->load(std::memory_order_relaxed) >= most_held_;
  const auto view = held_too_long ? std::span<std::byte>() : engine_->make_private(*arrival.channel, lease);
  if (!view.empty()) {
    lay(view.data(), received);
    return values.unpack(parts.head, buffers, counted(std::move(lease.hold), size));
  }
  const auto first = static_cast<std::size_t>(parts.buffers.front().data() - received);
  const std::shared_ptr<std::byte> memory = aligned_memory(size - first);
  copy_payload(memory.get(), received + first, size - first);
  traffic_.copied.fetch_add(size - first, std::memory_order_relaxed);
  lay(memory.get(), received + first);
  return values.unpack(parts.head, buffers, memory);
}

}  // namespace levada::pipeline
