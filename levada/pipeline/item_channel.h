// Channels of items between two processes of a pipeline. Each message holds many items in the engine's memory, and
// credit limits the messages in flight.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/pipeline/item.h"
#include "levada/pipeline/protocol.h"

namespace levada::pipeline {

/// Counts the messages of a process. Thread-safe.
struct Traffic {
  std::atomic<std::int64_t> messages{0};
  std::atomic<std::int64_t> wakeups{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> copied{0};
};

/// A message: magic (4 bytes), size of the header (4); the header; the items' head; then the buffers, each at a
/// multiple of 64.
struct ItemMessage {
  struct Header {
    std::uint64_t number = 0;  ///< message number on its edge
    protocol::Items items;
    std::uint64_t head_bytes = 0;
    std::vector<std::uint64_t> buffer_bytes;
    static auto fields(auto& self) { return std::tie(self.number, self.items, self.head_bytes, self.buffer_bytes); }
  };
  std::uint64_t number = 0;
  protocol::Items items;
  ByteView head;
  std::vector<ByteView> buffers;

  /// Reads untrusted bytes, which the result views. Throws CorruptMessage.
  static ItemMessage read(ByteView message);
  static std::size_t bytes(ByteView header, const ItemTraits::Packed& packed);
  /// Writes as many bytes as bytes() returns to `memory`.
  static void write(std::span<std::byte> memory, ByteView header, const ItemTraits::Packed& packed);
};

/// Limits on the messages queued on an edge.
struct EdgeOptions {
  std::int64_t messages = 10;
  std::size_t bytes = std::size_t{64} << 20;  ///< in addition to one message
};

/// The two channels of an edge. A message larger than its share of the bytes uses the second channel, which queues only
/// one message, so the engine's windows enforce both limits. Messages are numbered across both.
class EdgeChannels {
 public:
  /// Both ends must construct their EdgeChannels in the same order.
  EdgeChannels(Engine& engine, int from, int to, const EdgeOptions& options);

  Channel& channel_for(std::size_t message_bytes) const { return *channels_[message_bytes > share_ ? 1 : 0]; }
  Channel& channel(std::size_t number) const { return *channels_[number]; }

 private:
  std::array<std::shared_ptr<Channel>, 2> channels_;
  std::size_t share_;
};

/// The sending end. Queues messages until there is room for them.
class ItemSender {
 public:
  ItemSender(std::shared_ptr<Engine> engine, int to, const EdgeOptions& options, Traffic& traffic);

  /// Thrown if an item cannot be packed. The items before it have been queued.
  struct CannotPack {
    std::size_t item;
    std::exception_ptr cause;
  };
  /// Packs items into one message, or several if one would be too large, and queues them. `header` returns the header
  /// for items [begin, end); it is called with (0, 0) if there are none. Throws CannotPack.
  using Header = std::function<protocol::Items(std::size_t begin, std::size_t end)>;
  void put(std::span<const Item> items, const ItemTraits& traits, const Header& header);
  /// Sends queued messages while there is room. Returns whether all have been sent; if not, the caller waits for
  /// needs().
  bool try_send();
  void drop() { pending_.clear(); }
  /// Returns the bytes queued since the last call.
  std::size_t take_bytes() { return std::exchange(bytes_, 0); }

  /// The resource for which a sender waits: memory of this many bytes, or room in a channel.
  struct Needs {
    std::size_t memory = 0;
    Channel* room = nullptr;
  };
  Needs needs() const;
  int to() const { return channels_.channel(0).to().front(); }

 private:
  struct Pending {
    Bytes header;
    ItemTraits::Packed packed;
    std::size_t payload = 0, bytes = 0;
    Block block;
  };

  void put_part(std::span<const Item> items, const ItemTraits& traits, const Header& header, std::size_t begin,
                std::size_t end);
  bool fill(Pending& pending);

  std::shared_ptr<Engine> engine_;
  EdgeChannels channels_;
  std::size_t max_bytes_;
  Traffic& traffic_;
  std::deque<Pending> pending_;
  std::uint64_t sent_ = 0;
  std::size_t bytes_ = 0;
};

/// The receiving end.
class ItemReceiver {
 public:
  ItemReceiver(std::shared_ptr<Engine> engine, int from, const EdgeOptions& options, Traffic& traffic);

  /// A message whose items have not been unpacked yet.
  struct Arrival : ItemMessage {
    Lease lease;
    Channel* channel = nullptr;
  };
  /// Returns the next message, or nothing if none has arrived. Throws CorruptMessage.
  std::optional<Arrival> try_receive();
  /// Returns whether try_receive() has found that the sender has left.
  bool ended() const { return ended_; }
  /// Returns the items, which the receiver may modify: they are in a private view, or in separate memory. Throws
  /// CorruptMessage and the exceptions of ItemTraits::unpack().
  std::vector<Item> unpack(Arrival arrival, const ItemTraits& traits);

  /// Returns the channels to wait on if there is no message.
  std::vector<Channel*> channels() const;
  int from() const { return channels_.channel(0).from(); }

 private:
  std::vector<Item> unpack_some(Arrival arrival, const ItemTraits& traits);
  std::shared_ptr<const void> counted(std::shared_ptr<const void> hold, std::size_t bytes);

  std::shared_ptr<Engine> engine_;
  EdgeChannels channels_;
  std::size_t max_held_;
  Traffic& traffic_;
  std::uint64_t received_ = 0;
  bool ended_ = false;
  std::array<std::optional<Arrival>, 2> early_;  ///< per channel: a message that is not the next in order
  std::shared_ptr<std::atomic<std::size_t>> held_ = std::make_shared<std::atomic<std::size_t>>(0);
};

}  // namespace levada::pipeline
