// The entries that one rank has yet to send to its peers.
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

/// Keeps entries for each peer in the order in which they were added. Entries to the same peer share a frame if they
/// fit into one header. Entries that are not urgent wait for a frame to share, for at most `batching_delay`.
/// Thread-safe. One thread at a time encodes and sends frames on behalf of all threads, without holding a lock.
class Outbox {
 public:
  static constexpr Duration batching_delay = std::chrono::milliseconds(20);

  Outbox(std::shared_ptr<Transport> transport, int size);

  /// Adds an entry for a peer. `receipt_of`: the channel that the entry is a receipt for, if it is one. It replaces an
  /// older receipt that is still the peer's last entry.
  void add(int to, Entry entry, bool is_urgent, std::optional<std::uint64_t> receipt_of = {});
  /// Adds one message to several peers; urgent. `body` has no bytes if the message is the entry's payload.
  void add(std::span<const int> to, const Entry& message, const Lease& body);
  /// Makes the waiting entries of a peer urgent.
  void expedite(int to);
  /// Adds the last entry for a peer; drops later ones. Once it has been sent, the transport closes the peer.
  void finish(int to, Entry entry);
  /// Drops the unsent entries for a peer, adds `last`, and drops later ones.
  void close(int to, Entry last);

  /// Passes due entries to the transport, unless another thread is doing so. Calls `failed` for each peer to which
  /// sending failed.
  using Failed = std::function<void(int peer, std::string_view why)>;
  void flush(const Failed& failed) noexcept;
  /// Like flush(), for deferred entries.
  void flush_deferred(const Failed& failed) noexcept;

 private:
  struct Item {
    Entry entry;
    Lease body;
    std::uint64_t multicast = 0;  ///< equal for all copies of a message to several peers
    std::optional<std::uint64_t> receipt_of;
    bool is_last = false;
  };
  struct Peer {
    std::deque<Item> items;
    bool is_due = false;  ///< whether it is in due_
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
    bool is_last = false;  ///< whether it is the last frame to its only peer
  };
  /// Returns the next frame to `to` and to every other peer whose next frame is the same.
  Transmission next_frame(int to);

  const std::shared_ptr<Transport> transport_;
  const std::size_t max_header_bytes_;
  std::mutex mutex_;  // guards the members below
  std::vector<Peer> peers_;
  std::deque<int> due_;
  std::uint64_t num_multicasts_ = 0;
  bool is_flushing_ = false;
  bool has_deferred_ = false;   ///< whether a flush is scheduled, or about to be
  bool must_schedule_ = false;  ///< whether that flush has yet to be scheduled
};

}  // namespace levada::p2p
