// What one rank still has to send to its peers.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "levada/engine/p2p/frame.h"
#include "levada/engine/p2p/transport.h"

namespace levada::p2p {

/// Keeps entries in the order in which they were added, for each peer. Entries to the same peer share a frame where
/// they fit into one header. Entries that are not urgent wait for a frame to share, at most for `batching_delay`. Any
/// thread. One thread at a time encodes frames and sends them, for all threads, without holding a lock.
class Outbox {
 public:
  static constexpr Duration batching_delay = std::chrono::milliseconds(20);

  Outbox(std::shared_ptr<Transport> transport, int size);

  /// `receipt_of`: the entry is a receipt for this channel, and replaces an older one that is still the last entry.
  void add(int to, Entry entry, bool is_urgent, std::optional<std::uint64_t> receipt_of = {});
  /// One message to several peers; urgent. `body` is without bytes where the message is the entry's tail.
  void add(std::span<const int> to, const Entry& message, const Lease& body);
  /// Makes urgent what is waiting for a peer.
  void expedite(int to);
  /// The last entry to a peer; what is added later is dropped. Once it has been sent the transport closes the peer.
  void finish(int to, Entry entry);
  /// Drops what is left for a peer, sends it `last`, and drops what is added later.
  void close(int to, Entry last);

  /// Hands what is due to the transport, unless another thread is doing so. Calls `failed` for each peer that it could
  /// not send to.
  using Failed = std::function<void(int peer, std::string_view why)>;
  void flush(const Failed& failed) noexcept;
  /// The same for what is deferred.
  void flush_deferred(const Failed& failed) noexcept;

 private:
  struct Item {
    Entry entry;
    Lease body;
    std::uint64_t multicast = 0;  ///< the same for all copies of a message to several peers
    std::optional<std::uint64_t> receipt_of;
    bool is_last = false;
  };
  struct Peer {
    std::deque<Item> items;
    bool is_due = false;  ///< in due_
    bool is_closed = false;
  };
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  void add_locked(int to, Item item, bool is_urgent);
  void make_due(int to);
  void make_all_due();
  struct Transmission {
    std::vector<int> peers;
    std::vector<Entry> entries;
    Lease body;
    bool is_last = false;  ///< to its one peer
  };
  /// The next frame to `to`, and to every other peer that gets the same one next.
  Transmission next_frame(int to);

  const std::shared_ptr<Transport> transport_;
  const std::size_t max_header_bytes_;
  std::mutex mutex_;  // guards what follows
  std::vector<Peer> peers_;
  std::deque<int> due_;
  std::uint64_t num_multicasts_ = 0;
  bool is_flushing_ = false;
  bool has_deferred_ = false;   ///< a flush is scheduled, or about to be
  bool must_schedule_ = false;  ///< it is still to be
};

}  // namespace levada::p2p
