// What a channel means, for every engine alike: streams of messages, windows, ends, groups, membership. A pure value:
// no lock, no I/O, no clock. Media deliver events into it and carry out what it asks for.
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

/// What one rank notifies another of, in the order in which it happens.
struct Notice {
  enum class Kind : std::uint8_t {
    opened = 1,       ///< before the first message on the channel `key`: what its sender opened
    received,         ///< this many messages of the channel `key` have been received
    waiting,          ///< the sender of the channel `key` waits for room: receipts are urgent from now on
    sender_closed,    ///< no message follows on the channel `key`
    receiver_closed,  ///< nothing more is received from the channel `key`
    staying,          ///< the rank is in the group `key`, whatever groups it leaves that this was made from
    left,             ///< the rank has left the group `key`
    departed,         ///< the rank has left all groups; the last notice
  };
  Kind kind = Kind::opened;
  std::uint64_t key = 0;    ///< of a channel or a group
  std::uint64_t count = 0;  ///< received: how many
  std::uint64_t group = 0;  ///< opened, sender_closed, receiver_closed: the channel's group
  std::int32_t window = 0;  ///< opened
  bool is_urgent = true;    ///< somebody may be waiting for it; not sent along
  bool operator==(const Notice&) const = default;
};

struct AddressedNotice {
  int to = 0;
  Notice notice;
};

/// A message that has arrived and has not been received.
struct Arrival {
  ByteView bytes{};
  std::shared_ptr<const void> hold{};  ///< keeps the bytes, where the medium does not
  std::uint64_t id = 0;                ///< the medium's own name for the message
};

/// What open() was given, in the endpoint's ranks.
struct ChannelSpec {
  std::vector<std::uint64_t> groups;  ///< Group::keys
  int from = -1;
  std::vector<int> to;
  int window = 0;
};

/// One channel as one rank knows it, from the moment that this rank opens it or that something arrives for it, until
/// all its ends are closed. Media derive from it to keep what is their own.
struct ChannelState : std::enable_shared_from_this<ChannelState> {
  virtual ~ChannelState() = default;

  std::uint64_t key = 0;
  std::uint64_t group = 0;  ///< as another rank has named it, until this rank opens the channel
  bool is_open = false;     ///< this rank has opened it; `spec` does not change from then on
  ChannelSpec spec;
  bool must_be_closed = false;  ///< ChannelOptions

  // The receiving end.
  bool receives = false;      ///< this rank is a receiver ...
  bool is_receiving = false;  ///< ... and has not closed
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
  /// Messages that `receiver` has still to receive.
  int not_received(const Receiver& receiver) const { return static_cast<int>(num_sent - receiver.num_received); }
};

/// The channels and groups of one rank. Ranks are the endpoint's. What other ranks have to learn is left in
/// take_notices() and take_endings(), for the caller to carry after each call.
class ChannelTable {
 public:
  /// How a medium works.
  struct Options {
    /// Receivers send `received`; else the medium sets Receiver::num_received itself.
    bool sends_receipts = true;
    std::shared_ptr<ChannelState> (*make_state)() = [] { return std::make_shared<ChannelState>(); };
  };
  ChannelTable(int rank, int size, Options options);

  // ---- what this rank does

  /// `group` stays where it is until it has left.
  void enter(Group& group);
  /// Closes the group's channels. Nothing happens to a group that it has not entered.
  void leave(Group& group);
  /// Closes all channels and notifies every rank.
  void depart();
  /// Brings the group's cause up to date.
  void refresh(Group& group) const;
  /// `from` and `to` are the group's ranks, `key` what all members derive for the channel. Where the sender has opened
  /// it with another window, the group ends with InvalidArgument.
  std::shared_ptr<ChannelState> open(Group& group, std::uint64_t key, int from, std::span<const int> to, int window);
  /// Nothing happens to an end that is not this rank's or is closed.
  void close(ChannelState& channel, End end);
  /// Closes this rank's ends, except a sending one that must be closed by close().
  void release(ChannelState& channel);
  bool has_room(const ChannelState& channel) const;
  /// To be called before a message is sent: the first one is announced.
  void announce(ChannelState& channel);
  /// A message has been sent to all receivers that are not over.
  void count_sent(ChannelState& channel) { ++channel.num_sent; }
  /// Asks the receivers for urgent receipts.
  void ask_for_room(ChannelState& channel);
  /// Needs a message in `arrived`.
  Arrival receive(ChannelState& channel);
  /// Whether, for this rank, no message follows those in `arrived`.
  bool has_ended(const ChannelState& channel) const {
    return !channel.is_receiving || (channel.must_be_closed ? channel.sender_closed : sender_is_over(channel));
  }
  /// Whether no message follows though its sender has not closed it, as it must.
  bool is_abandoned(const ChannelState& channel) const {
    return channel.arrived.empty() && !has_ended(channel) && sender_is_over(channel);
  }
  /// Whether its sender sends no more.
  bool sender_is_over(const ChannelState& channel) const;
  bool receiver_is_over(const ChannelState& channel, const ChannelState::Receiver& receiver) const;
  bool is_over(const ChannelState& channel) const;

  // ---- what others have done; throws CorruptMessage for what no rank does

  void arrive(int from, std::uint64_t key, Arrival arrival);
  void apply(int from, const Notice& notice);
  /// The loss of a rank that has departed, or is lost already, is nothing.
  void end(Ending ending);

  // ---- what is to be carried out

  std::vector<AddressedNotice> take_notices() { return std::exchange(notices_, {}); }
  bool has_notices() const { return !notices_.empty(); }
  /// Endings that this rank has found, for all ranks of their group.
  std::vector<Ending> take_endings() { return std::exchange(found_, {}); }
  bool has_endings() const { return !found_.empty(); }
  /// Messages that nobody will receive, each with its sender, for media that have to give them back.
  std::vector<std::pair<int, Arrival>> take_dropped() { return std::exchange(dropped_, {}); }
  bool has_dropped() const { return !dropped_.empty(); }

  // ---- what is known

  bool has_departed(int rank) const { return peer(rank).departed; }
  bool is_lost(int rank) const { return peer(rank).lost; }
  /// Whether the group itself has been aborted, or all groups have.
  bool is_aborted(std::uint64_t group) const;
  /// Whether something has ended a group since this rank last entered one, or a rank is lost.
  bool has_failed() const;
  /// Departed or lost: nothing comes from it any more.
  bool is_gone(int rank) const { return peer(rank).departed || peer(rank).lost; }
  std::size_t num_groups() const { return groups_.size(); }
  Group* group(std::uint64_t key) const;
  /// What this rank has opened the channel with, to receive what `from` sends there; empty if nothing.
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
  /// Returns the channel of which `from` claims to be the sender.
  ChannelState& channel_from(int from, std::uint64_t key);
  void accept_opened(int from, const Notice& notice);
  void accept_sender_closed(int from, const Notice& notice);
  void accept_received(int from, const Notice& notice);
  void accept_receiver_closed(int from, const Notice& notice);
  void learn_group(ChannelState& channel, std::uint64_t group);
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
  std::unordered_map<std::uint64_t, Group*> groups_;  ///< those that this rank is in
  Membership membership_;
  std::vector<Peer> peers_;
  std::vector<Ending> endings_;         ///< in the order in which this rank learned of them
  std::size_t num_endings_before_ = 0;  ///< when this rank last entered a group
  std::vector<AddressedNotice> notices_;
  std::vector<Ending> found_;
  std::vector<std::pair<int, Arrival>> dropped_;
};

}  // namespace levada
