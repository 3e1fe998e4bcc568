#include "levada/engine/channel_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/assert.h"
#include "levada/base/error.h"
#include "levada/engine/process_failure.h"
#include "levada/engine/ranks.h"

namespace levada {
namespace {

constexpr auto another_ranks_channel = "it sends on a channel of another rank";
constexpr auto closed_twice = "it closes a channel twice";

[[noreturn]] void throw_corrupt(const std::string& what) {
  throw CorruptMessage(0, what);
}

}  // namespace

ChannelState::Receiver* ChannelState::receiver(int rank) {
  const auto found =
      std::find_if(receivers.begin(), receivers.end(), [&](const Receiver& r) { return r.rank == rank; });
  return found == receivers.end() ? nullptr : &*found;
}

ChannelTable::ChannelTable(int rank, int size, Options options)
    : rank_(rank), options_(options), peers_(static_cast<std::size_t>(size)) {}

void ChannelTable::notify(int to, Notice notice) {
  if (to != rank_ && !is_gone(to)) notices_.push_back({to, notice});
}

// ---- groups

void ChannelTable::enter(Group& group) {
  ProcessFailure::forget();
  groups_[group.key()] = &group;
  membership_.enter_oneself(group.keys);
}

void ChannelTable::leave(Group& group) {
  if (groups_.erase(group.key()) == 0) return;
  close_channels(&group);
  for (const auto& [key, other] : groups_) {
    const bool is_subgroup = std::find(other->keys.begin() + 1, other->keys.end(), group.key()) != other->keys.end();
    if (!is_subgroup) continue;
    for (const int rank : other->ranks) notify(rank, {.kind = Notice::Kind::staying, .key = key, .is_urgent = false});
  }
  // Notify immediately, so that the group does not count this rank as lost if its process ends later.
  for (const int rank : group.ranks) notify(rank, {.kind = Notice::Kind::left, .key = group.key()});
  membership_.leave_oneself(group.keys, group.ranks.size() - 1);
}

void ChannelTable::depart() {
  has_departed_ = true;
  groups_.clear();
  close_channels(nullptr);
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) notify(rank, {.kind = Notice::Kind::departed});
}

void ChannelTable::refresh(Group& group) const {
  for (; group.num_seen < endings_.size(); ++group.num_seen) {
    const Ending& ending = endings_[group.num_seen];
    if (is_abort(ending)) {
      const bool is_ours =
          ending.group == 0 || std::find(group.keys.begin(), group.keys.end(), ending.group) != group.keys.end();
      if (!is_ours) continue;
      group.aborted = true;
    } else if (group.rank_of(ending.rank) < 0 ||
               (ending.kind == ErrorKind::peer_lost && membership_.has_left(group.keys, ending.rank))) {
      continue;
    }
    if (!group.cause) group.cause = Cause{ending.kind, group.rank_of(ending.rank), -1, ending.detail};
  }
}

void ChannelTable::end(Ending ending) {
  if (!is_abort(ending)) {
    if (is_gone(ending.rank)) return;
    peers_[static_cast<std::size_t>(ending.rank)].lost = true;
  }
  ProcessFailure::note();
  endings_.push_back(std::move(ending));
  forget_over();
}

bool ChannelTable::has_lost_peer() const {
  return std::ranges::any_of(peers_, &Peer::lost);
}

bool ChannelTable::is_aborted(std::uint64_t group) const {
  return std::any_of(endings_.begin(), endings_.end(), [&](const Ending& ending) {
    return is_abort(ending) && (ending.group == 0 || ending.group == group);
  });
}

Group* ChannelTable::group(std::uint64_t key) const {
  const auto found = groups_.find(key);
  return found == groups_.end() ? nullptr : found->second;
}

bool ChannelTable::is_out_of(std::span<const std::uint64_t> groups, int rank) const {
  return rank != rank_ && (peer(rank).departed || membership_.has_left(groups, rank));
}

// ---- opening and closing

ChannelState& ChannelTable::find_or_add(std::uint64_t key) {
  auto& channel = channels_[key];
  if (!channel) {
    channel = options_.make_state();
    channel->key = key;
  }
  return *channel;
}

std::shared_ptr<ChannelState> ChannelTable::open(Group& group, std::uint64_t key, int from, std::span<const int> to,
                                                 int window) {
  ChannelState& channel = find_or_add(key);
  ChannelSpec& spec = channel.spec;
  spec = {.groups = group.keys, .from = group.endpoint_rank(from), .to = {}, .window = window};
  for (const int receiver : to) spec.to.push_back(group.endpoint_rank(receiver));
  if (channel.announced && channel.announced->from != spec.from) {
    end({.kind = ErrorKind::corrupt_message, .rank = channel.announced->from, .detail = another_ranks_channel});
    channel.arrived.clear();
  }
  channel.is_open = true;
  channel.sends = channel.is_sending = spec.from == rank_;
  channel.receives = channel.is_receiving = rank_in(to, group.rank) >= 0;
  if (channel.sends) {
    for (const int receiver : spec.to) {
      channel.receivers.push_back({.rank = receiver, .closed = rank_in(channel.closed_early, receiver) >= 0});
    }
    channel.closed_early = {};
  } else if (channel.announced) {
    expect_same_window(channel);
  }
  return channels_.at(key);
}

void ChannelTable::expect_same_window(const ChannelState& channel) {
  const auto& [from, opened] = *channel.announced;
  const ChannelSpec& spec = channel.spec;
  if (opened.window == spec.window) return;
  Ending ending{.kind = ErrorKind::invalid_argument,
                .group = spec.groups.front(),
                .rank = rank_,
                .detail = fmt::format("it opened a channel with a window of {} that its sender opened with {}",
                                      spec.window, opened.window)};
  const bool is_known = std::any_of(endings_.begin(), endings_.end(), [&](const Ending& other) {
    return other.kind == ending.kind && other.group == ending.group;
  });
  if (is_known) return;
  found_.push_back(ending);
  end(std::move(ending));
}

void ChannelTable::close(ChannelState& channel, End end) {
  if (end == End::sending) {
    if (!std::exchange(channel.is_sending, false)) return;
    for (const auto& receiver : channel.receivers) {
      // Notify receivers that have closed, too, because they keep the channel until its sender has closed.
      if (receiver.rank == rank_) channel.sender_closed = true;
      else
        notify(receiver.rank, {.kind = Notice::Kind::sender_closed,
                               .key = channel.key,
                               .group = channel.spec.groups.front(),
                               .is_urgent = false});
    }
  } else {
    if (!std::exchange(channel.is_receiving, false)) return;
    drop_arrived(channel);
    channel.landing = {};
    if (auto* const mine = channel.receiver(rank_)) mine->closed = true;
    else
      notify(channel.spec.from, {.kind = Notice::Kind::receiver_closed,
                                 .key = channel.key,
                                 .group = channel.spec.groups.front(),
                                 .is_urgent = channel.sender_waits});
  }
  forget_if_over(channel);
}

void ChannelTable::release(ChannelState& channel) {
  if (channel.must_be_closed) channel.is_sending = false;
  close(channel, End::sending);
  close(channel, End::receiving);
}

void ChannelTable::close_channels(const Group* group) {
  std::vector<std::shared_ptr<ChannelState>> closing;  // a copy: closing a channel may erase it from the table
  for (const auto& [key, channel] : channels_) {
    if (channel->is_open) {
      if (group == nullptr || channel->spec.groups.front() == group->key()) closing.push_back(channel);
    } else if (group == nullptr || channel->group == group->key()) {
      close_unopened(*channel);
    }
  }
  for (const auto& channel : closing) release(*channel);
  forget_over();
}

void ChannelTable::drop_arrived(ChannelState& channel) {
  for (Arrival& arrival : channel.arrived) dropped_.emplace_back(channel.spec.from, std::move(arrival));
  channel.arrived = {};
}

/// Closes a channel of a group that this rank has left without opening the channel.
void ChannelTable::close_unopened(ChannelState& channel) {
  channel.is_open = true;
  if (!channel.announced) return;  // no message follows
  const auto& [from, opened] = *channel.announced;
  channel.receives = true;
  channel.spec = {.groups = {opened.group}, .from = from, .to = {rank_}, .window = opened.window};
  drop_arrived(channel);
}

Landing ChannelTable::landing(int from, std::uint64_t key) const {
  const auto found = channels_.find(key);
  if (found == channels_.end() || !found->second->is_receiving || found->second->spec.from != from) return {};
  return found->second->landing;
}

bool ChannelTable::sender_is_over(const ChannelState& channel) const {
  return channel.sender_closed || is_out_of(channel.spec.groups, channel.spec.from);
}

bool ChannelTable::receiver_is_over(const ChannelState& channel, const ChannelState::Receiver& receiver) const {
  return receiver.closed || is_out_of(channel.spec.groups, receiver.rank);
}

bool ChannelTable::is_over(const ChannelState& channel) const {
  if (!channel.is_open || channel.is_sending || channel.is_receiving) return false;
  const bool awaits_sender = channel.receives && !channel.sends;
  if (awaits_sender && !sender_is_over(channel) && !is_gone(channel.spec.from)) return false;
  return std::all_of(channel.receivers.begin(), channel.receivers.end(), [&](const auto& receiver) {
    return receiver_is_over(channel, receiver) || is_gone(receiver.rank);
  });
}

void ChannelTable::forget_if_over(const ChannelState& channel) {
  if (is_over(channel)) channels_.erase(std::uint64_t{channel.key});
}

void ChannelTable::forget_over() {
  std::erase_if(channels_, [&](const auto& entry) { return is_over(*entry.second); });
}

// ---- sending

bool ChannelTable::has_room(const ChannelState& channel) const {
  return std::all_of(channel.receivers.begin(), channel.receivers.end(), [&](const auto& receiver) {
    return channel.not_received(receiver) < channel.spec.window || receiver_is_over(channel, receiver);
  });
}

void ChannelTable::announce(ChannelState& channel) {
  LEVADA_ASSERT(channel.is_sending, "messages are sent only on an open end");
  if (std::exchange(channel.has_announced, true)) return;
  for (const auto& receiver : channel.receivers) {
    if (receiver_is_over(channel, receiver)) continue;
    notify(receiver.rank, {.kind = Notice::Kind::opened,
                           .key = channel.key,
                           .group = channel.spec.groups.front(),
                           .window = channel.spec.window});
  }
}

void ChannelTable::ask_for_room(ChannelState& channel) {
  if (std::exchange(channel.has_announced_wait, true)) return;
  for (const auto& receiver : channel.receivers) {
    if (!receiver_is_over(channel, receiver)) {
      notify(receiver.rank, {.kind = Notice::Kind::waiting, .key = channel.key});
    }
  }
}

// ---- receiving

Arrival ChannelTable::receive(ChannelState& channel) {
  LEVADA_ASSERT(channel.is_receiving && !channel.arrived.empty(), "a received message has arrived at an open end");
  Arrival arrival = std::move(channel.arrived.front());
  channel.arrived.pop_front();
  ++channel.num_received;
  if (auto* const mine = channel.receiver(rank_)) {
    mine->num_received = channel.num_received;
  } else if (options_.sends_receipts) {
    notify(channel.spec.from, {.kind = Notice::Kind::received,
                               .key = channel.key,
                               .count = channel.num_received,
                               .is_urgent = channel.sender_waits});
  }
  return arrival;
}

ChannelState& ChannelTable::channel_from(int from, std::uint64_t key) {
  ChannelState& channel = find_or_add(key);
  if (channel.is_open ? channel.spec.from != from || !channel.receives
                      : channel.announced && channel.announced->from != from) {
    throw_corrupt(another_ranks_channel);
  }
  return channel;
}

void ChannelTable::arrive(int from, std::uint64_t key, Arrival arrival) {
  ChannelState& channel = channel_from(from, key);
  if (from != rank_ && !channel.announced) throw_corrupt("a message on an unannounced channel");
  if (channel.is_open && !channel.is_receiving) return dropped_.emplace_back(from, std::move(arrival)), void();
  channel.arrived.push_back(std::move(arrival));
  const int window = from == rank_ ? channel.spec.window : channel.announced->opened.window;
  if (channel.arrived.size() > static_cast<std::size_t>(window)) {
    throw_corrupt(fmt::format("more messages than the window of {} that it announced", window));
  }
}

void ChannelTable::apply(int from, const Notice& notice) {
  using Kind = Notice::Kind;
  if (is_gone(from)) return;
  switch (notice.kind) {
    case Kind::opened: return accept_opened(from, notice);
    case Kind::received: return accept_received(from, notice);
    case Kind::waiting: {
      ChannelState& channel = channel_from(from, notice.key);
      channel.sender_waits = true;
      if (channel.is_open && channel.num_received > 0 && options_.sends_receipts) {
        notify(from, {.kind = Kind::received, .key = notice.key, .count = channel.num_received});
      }
      return;
    }
    case Kind::sender_closed: return accept_sender_closed(from, notice);
    case Kind::receiver_closed: return accept_receiver_closed(from, notice);
    case Kind::staying: return membership_.stay(notice.key, from);
    case Kind::left:
      membership_.leave(notice.key, from);
      forget_over();
      return membership_.forget_if_over(notice.key);
    case Kind::departed: peers_[static_cast<std::size_t>(from)].departed = true; return forget_over();
  }
  throw_corrupt(fmt::format("a notice of kind {}", static_cast<unsigned>(notice.kind)));
}

void ChannelTable::accept_opened(int from, const Notice& notice) {
  ChannelState& channel = channel_from(from, notice.key);
  if (channel.announced || notice.window < 1) throw_corrupt("a channel announced twice or without a window");
  channel.announced = {from, notice};
  if (channel.is_open) expect_same_window(channel);
  else store_group(channel, notice.group);
}

/// Stores the group of an unopened channel; closes it if this rank has left the group.
void ChannelTable::store_group(ChannelState& channel, std::uint64_t group) {
  channel.group = group;
  if (has_departed_ || membership_.has_left_oneself(group)) close_unopened(channel);
}

void ChannelTable::accept_sender_closed(int from, const Notice& notice) {
  ChannelState& channel = channel_from(from, notice.key);
  channel.sender_closed = true;
  // A channel that was never announced may still be opened here, already ended.
  if (!channel.is_open) store_group(channel, notice.group);
  forget_if_over(channel);
}

void ChannelTable::accept_received(int from, const Notice& notice) {
  const auto found = channels_.find(notice.key);
  if (found == channels_.end()) return;  // closed since
  ChannelState::Receiver* const receiver = found->second->receiver(from);
  if (receiver == nullptr || notice.count > found->second->num_sent || notice.count < receiver->num_received) {
    throw_corrupt("an impossible count of received messages");
  }
  receiver->num_received = notice.count;
}

void ChannelTable::accept_receiver_closed(int from, const Notice& notice) {
  ChannelState& channel = find_or_add(notice.key);
  if (channel.is_open) {
    ChannelState::Receiver* const receiver = channel.receiver(from);
    if (receiver == nullptr) throw_corrupt(another_ranks_channel);
    if (std::exchange(receiver->closed, true)) throw_corrupt(closed_twice);
  } else {
    if (channel.announced) throw_corrupt(another_ranks_channel);
    if (rank_in(channel.closed_early, from) >= 0) throw_corrupt(closed_twice);
    channel.closed_early.push_back(from);
    store_group(channel, notice.group);
  }
  forget_if_over(channel);
}

}  // namespace levada
