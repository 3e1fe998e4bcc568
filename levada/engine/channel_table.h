// The semantics of channels that all engines share: message streams, windows, ends, groups, membership. A pure value:
// no lock, no I/O, no clock. Media deliver events to it and carry out its requests.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/engine/group.h"
#include "levada/engine/membership.h"

namespace levada {

/// A notification from one rank to another. Notices are delivered in the order of the events.
struct Notice {
  enum class Kind : std::uint8_t {
    opened = 1,       ///< precedes the first message on the channel `key`: the parameters of its sender
    received,         ///< `count` messages of the channel `key` have been received so far
    waiting,          ///< the sender of the channel `key` waits for room: receipts are urgent from now on
    sender_closed,    ///< no message follows on the channel `key`
    receiver_closed,  ///< nothing more is received from the channel `key`
    staying,          ///< the rank stays in the group `key`, even if it leaves groups that this one was made from
    left,             ///< the rank has left the group `key`
    departed,         ///< the rank has left all groups; the last notice
  };
  Kind kind = Kind::opened;
  std::uint64_t key = 0;    ///< key of a channel or a group
  std::uint64_t count = 0;  ///< number of messages (received)
  std::uint64_t group = 0;  ///< the channel's group (opened, sender_closed, receiver_closed)
  std::int32_t window = 0;  ///< the sender's window (opened)
  bool is_urgent = true;    ///< whether a rank may be waiting for the notice; not transmitted
  bool operator==(const Notice&) const = default;
};

struct AddressedNotice {
  int to = 0;
  Notice notice;
};

/// A message that has arrived and has not been received.
struct Arrival {
  ByteView bytes{};
  std::shared_ptr<const void> hold{};  ///< keeps the bytes alive if the medium does not
  std::uint64_t id = 0;                ///< the medium's identifier of the message
};

/// The arguments of open(), in the endpoint's ranks.
struct ChannelSpec {
  std::vector<std::uint64_t> groups;  ///< Group::keys
  int from = -1;
  std::vector<int> to;
  int window = 0;
};

/// One rank's view of a channel, from the time that this rank opens it or something arrives for it until all its ends
/// are closed. Media derive from it to add their own state.
struct ChannelState : std::enable_shared_from_this<ChannelState> {
  virtual ~ChannelState() = default;

  std::uint64_t key = 0;
  std::uint64_t group = 0;  ///< key that another rank named, until this rank opens the channel
  bool is_open = false;     ///< whether this rank has opened it; `spec` does not change afterwards
  ChannelSpec spec;
  bool must_be_closed = false;  ///< ChannelOptions::must_be_closed

  // The receiving end.
  bool receives = false;      ///< whether this rank is a receiver
  bool is_receiving = false;  ///< whether its receiving end is open
  struct Announcement {
    int from = -1;
    Notice opened;
  };
  std::optional<Announcement> announced;
  std::deque<Arrival> arrived;
  std::uint64_t num_received = 0;
  bool sender_waits = false;
  bool sender_closed = false;
  Landing landing;

  // The sending end.
  struct Receiver {
    int rank = 0;
    bool closed = false;
    std::uint64_t num_received = 0;
  };
  bool sends = false;
  bool is_sending = false;
  bool has_announced = false;
  bool has_announced_wait = false;
  std::uint64_t num_sent = 0;
  std::vector<Receiver> receivers;
  std::vector<int> closed_early;  ///< receivers that had closed before this rank opened the channel

  Receiver* receiver(int rank);
  /// Returns the number of messages that `receiver` has yet to receive.
  int not_received(const Receiver& receiver) const { return static_cast<int>(num_sent - receiver.num_received); }
};

/// The channels and groups of one rank. Ranks are in the endpoint's numbering. After each call, the caller delivers
/// take_notices() and take_endings() to the other ranks.
class ChannelTable {
 public:
  /// Properties of a medium.
  struct Options {
    /// Whether receivers send `received`; if not, the medium sets Receiver::num_received.
    bool sends_receipts = true;
    std::shared_ptr<ChannelState> (*make_state)() = [] { return std::make_shared<ChannelState>(); };
  };
  ChannelTable(int rank, int size, Options options);

  // ---- actions of this rank

  /// Enters the group. `group` must not move until leave().
  void enter(Group& group);
  /// Leaves the group and closes its channels. No effect on a group that this rank has not entered.
  void leave(Group& group);
  /// Closes all channels and notifies every rank.
  void depart();
  /// Updates the group's cause.
  void refresh(Group& group) const;
  /// `from` and `to` are ranks of the group; `key` is the channel key that all members derive. If the sender has opened
  /// the channel with another window, the group ends with InvalidArgument.
  std::shared_ptr<ChannelState> open(Group& group, std::uint64_t key, int from, std::span<const int> to, int window);
  /// Closes an end. No effect if this rank does not hold it or it is already closed.
  void close(ChannelState& channel, End end);
  /// Closes this rank's ends, except a sending end that only close() closes.
  void release(ChannelState& channel);
  bool has_room(const ChannelState& channel) const;
  /// Must be called before a message is sent. Announces the channel before its first message.
  void announce(ChannelState& channel);
  /// Counts a message that has been sent to every receiver that can still receive it.
  void count_sent(ChannelState& channel) { ++channel.num_sent; }
  /// Asks the receivers for urgent receipts.
  void ask_for_room(ChannelState& channel);
  /// Requires a message in `arrived`.
  Arrival receive(ChannelState& channel);
  /// Returns whether, for this rank, no message follows those in `arrived`.
  bool has_ended(const ChannelState& channel) const {
    return !channel.is_receiving || (channel.must_be_closed ? channel.sender_closed : sender_is_over(channel));
  }
  /// Returns whether no message follows although the sender has not closed the channel, as it must.
  bool is_abandoned(const ChannelState& channel) const {
    return channel.arrived.empty() && !has_ended(channel) && sender_is_over(channel);
  }
  /// Returns whether the sender will send nothing more.
  bool sender_is_over(const ChannelState& channel) const;
  bool receiver_is_over(const ChannelState& channel, const ChannelState::Receiver& receiver) const;
  bool is_over(const ChannelState& channel) const;

  // ---- actions of other ranks; throw CorruptMessage for impossible ones

  void arrive(int from, std::uint64_t key, Arrival arrival);
  void apply(int from, const Notice& notice);
  /// No effect if the rank that is lost has departed or is already lost.
  void end(Ending ending);

  // ---- requests to the medium

  std::vector<AddressedNotice> take_notices() { return std::exchange(notices_, {}); }
  bool has_notices() const { return !notices_.empty(); }
  /// Returns endings that this rank has detected, to be sent to all ranks of their groups.
  std::vector<Ending> take_endings() { return std::exchange(found_, {}); }
  bool has_endings() const { return !found_.empty(); }
  /// Returns messages that no rank will receive, each with its sender, for media that have to release them.
  std::vector<std::pair<int, Arrival>> take_dropped() { return std::exchange(dropped_, {}); }
  bool has_dropped() const { return !dropped_.empty(); }

  // ---- state

  bool has_departed(int rank) const { return peer(rank).departed; }
  bool is_lost(int rank) const { return peer(rank).lost; }
  /// Returns whether the group itself has been aborted, or all groups have.
  bool is_aborted(std::uint64_t group) const;
  bool has_lost_peer() const;
  /// Returns whether the rank has departed or is lost: nothing more arrives from it.
  bool is_gone(int rank) const { return peer(rank).departed || peer(rank).lost; }
  std::size_t num_groups() const { return groups_.size(); }
  Group* group(std::uint64_t key) const;
  /// Returns this rank's landing for messages from `from` on the channel, or an empty function.
  Landing landing(int from, std::uint64_t key) const;
  std::size_t num_channels() const { return channels_.size(); }
  std::size_t num_endings() const { return endings_.size(); }

 private:
  struct Peer {
    bool departed = false;
    bool lost = false;
  };
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  void notify(int to, Notice notice);
  ChannelState& find_or_add(std::uint64_t key);
  /// Returns the channel that `from` claims to send on.
  ChannelState& channel_from(int from, std::uint64_t key);
  void accept_opened(int from, const Notice& notice);
  void accept_sender_closed(int from, const Notice& notice);
  void accept_received(int from, const Notice& notice);
  void accept_receiver_closed(int from, const Notice& notice);
  void store_group(ChannelState& channel, std::uint64_t group);
  void expect_same_window(const ChannelState& channel);
  void close_channels(const Group* group);
  void drop_arrived(ChannelState& channel);
  void close_unopened(ChannelState& channel);
  bool is_out_of(std::span<const std::uint64_t> groups, int rank) const;
  void forget_if_over(const ChannelState& channel);
  void forget_over();

  int rank_;
  Options options_;
  bool has_departed_ = false;
  std::unordered_map<std::uint64_t, std::shared_ptr<ChannelState>> channels_;
  std::unordered_map<std::uint64_t, Group*> groups_;  ///< groups that this rank is in
  Membership membership_;
  std::vector<Peer> peers_;
  std::vector<Ending> endings_;  ///< in the order in which this rank learned of them
  std::vector<AddressedNotice> notices_;
  std::vector<Ending> found_;
  std::vector<std::pair<int, Arrival>> dropped_;
};

}  // namespace levada
