// Ranks with one channel table each, and the notices in transit between them. For tests only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "levada/engine/channel_table.h"
#include "levada/engine/ranks.h"

namespace levada::test {

/// A medium's view of one rank, in a group of all ranks.
struct Rank {
  Rank(int rank, int size) : table(rank, size, {}), group(root_group("test", rank, size)), keys(group.key()) {
    table.enter(group);
  }
  std::shared_ptr<ChannelState> open(int from, std::vector<int> to, int window) {
    return table.open(group, keys.channel(from, to), from, to, window);
  }
  std::optional<ErrorKind> cause() { return cause(group); }
  std::optional<ErrorKind> cause(Group& of) {
    table.refresh(of);
    return of.cause ? std::optional(of.cause->kind) : std::nullopt;
  }

  ChannelTable table;
  Group group;
  KeyDeriver keys;
};

/// Ranks and their notices in transit, with one ordered queue for each pair of ranks.
struct Network {
  explicit Network(int size) : queues(static_cast<std::size_t>(size * size)) {
    for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<Rank>(rank, size));
  }

  struct Message {
    std::uint64_t key;
    std::uint64_t number;
  };
  using Packet = std::variant<Notice, Message, Ending>;

  int size() const { return static_cast<int>(ranks.size()); }
  Rank& rank(int number) { return *ranks[static_cast<std::size_t>(number)]; }
  std::deque<Packet>& queue(int from, int to) { return queues[static_cast<std::size_t>(from * size() + to)]; }

  /// Moves everything that `from`'s table has yet to send to the queues.
  void carry(int from) {
    for (const AddressedNotice& outgoing : rank(from).table.take_notices())
      queue(from, outgoing.to).push_back(outgoing.notice);
    for (const Ending& ending : rank(from).table.take_endings()) send_all(from, ending);
    rank(from).table.take_dropped();
  }
  void send_all(int from, const Ending& ending) {
    for (int to = 0; to < size(); ++to) {
      if (to != from) queue(from, to).push_back(ending);
    }
  }
  void publish(int from, ChannelState& channel) {
    ChannelTable& table = rank(from).table;
    table.announce(channel);
    carry(from);
    for (const auto& receiver : channel.receivers) {
      if (table.receiver_is_over(channel, receiver)) continue;
      if (receiver.rank == from) table.arrive(from, channel.key, {.id = channel.num_sent});
      else queue(from, receiver.rank).push_back(Message{channel.key, channel.num_sent});
    }
    table.count_sent(channel);
    carry(from);
  }
  void deliver(int from, int to) {
    const Packet packet = queue(from, to).front();
    queue(from, to).pop_front();
    ChannelTable& table = rank(to).table;
    if (const auto* const notice = std::get_if<Notice>(&packet)) table.apply(from, *notice);
    else if (const auto* const message = std::get_if<Message>(&packet))
      table.arrive(from, message->key, {.id = message->number});
    else table.end(std::get<Ending>(packet));
    carry(to);
  }
  void deliver_all() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int from = 0; from < size(); ++from) {
        for (int to = 0; to < size(); ++to) {
          while (!queue(from, to).empty()) deliver(from, to), moved = true;
        }
      }
    }
  }

  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<std::deque<Packet>> queues;
};

}  // namespace levada::test
