#include "levada/engine/channel_table.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/channel_table_testing.h"

namespace levada {
namespace {

using test::Network;
using test::Rank;

TEST(ChannelTable, RejectsADifferentWindowOnAllMembersEvenIfOpenedLate) {
  for (const bool late : {false, true}) {
    Network network(3);
    const auto sending = network.rank(0).open(0, {1, 2}, 2);
    if (!late) network.rank(1).open(0, {1, 2}, 3);
    network.publish(0, *sending);
    network.deliver_all();
    if (late) {
      EXPECT_EQ(network.rank(0).cause(), std::nullopt);
      network.rank(1).open(0, {1, 2}, 3);
      network.carry(1);
      network.deliver_all();
    }
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(network.rank(rank).cause(), ErrorKind::invalid_argument) << rank;
  }
}

TEST(ChannelTable, DropsMessagesForAGroupThatItHasLeft) {
  Network network(2);
  Rank& one = network.rank(1);
  Group group = subgroup_of(one.group, one.keys, std::array{0, 1}, "sub");
  one.table.enter(group);
  one.table.leave(group);
  one.table.take_notices();
  one.table.apply(0, {.kind = Notice::Kind::opened, .key = 9, .group = group.key(), .window = 1});
  one.table.arrive(0, 9, {.id = 4});
  const auto dropped = one.table.take_dropped();
  ASSERT_EQ(dropped.size(), 1U);
  EXPECT_EQ(dropped[0].second.id, 4U);
  one.table.apply(0, {.kind = Notice::Kind::sender_closed, .key = 9});
  EXPECT_EQ(one.table.num_channels(), 0U);
}

/// Makes both ranks enter a subgroup of the two. Returns each rank's group, which must not move until it is left.
std::vector<Group> enter_subgroup(Network& network) {
  std::vector<Group> groups;
  for (int rank = 0; rank < 2; ++rank) {
    Rank& it = network.rank(rank);
    groups.push_back(subgroup_of(it.group, it.keys, std::array{0, 1}, "sub"));
  }
  for (int rank = 0; rank < 2; ++rank) network.rank(rank).table.enter(groups[static_cast<std::size_t>(rank)]);
  return groups;
}

/// Expects that a channel of a subgroup is forgotten if one rank closes it and the other never opens it but leaves,
/// before or after.
void expect_no_channel_is_kept(int closing, End end, bool leaves_first) {
  Network network(2);
  auto groups = enter_subgroup(network);
  const int other = 1 - closing;
  const auto leave = [&] {
    network.rank(other).table.leave(groups[static_cast<std::size_t>(other)]);
    network.carry(other);
  };
  if (leaves_first) leave();
  ChannelTable& table = network.rank(closing).table;
  const auto channel = table.open(groups[static_cast<std::size_t>(closing)], 9, 0, std::array{1}, 1);
  table.close(*channel, end);
  network.carry(closing);
  network.deliver(closing, other);
  if (!leaves_first) leave();
  network.deliver_all();
  for (const int rank : {0, 1}) EXPECT_EQ(network.rank(rank).table.num_channels(), 0U) << rank << " after " << closing;
}

TEST(ChannelTable, ForgetsAChannelThatOneRankClosedAndTheOtherNeverOpened) {
  for (const bool leaves_first : {false, true}) {
    expect_no_channel_is_kept(0, End::sending, leaves_first);
    expect_no_channel_is_kept(1, End::receiving, leaves_first);
  }
}

TEST(ChannelTable, KeepsARankInASubgroupIfItLeavesOnlyTheParent) {
  Network network(2);
  auto groups = enter_subgroup(network);
  network.rank(1).table.leave(network.rank(1).group);
  network.carry(1);
  network.deliver_all();
  network.rank(0).table.end({.kind = ErrorKind::peer_lost, .rank = 1});
  EXPECT_EQ(network.rank(0).cause(), std::nullopt) << "rank 1 had left this group first";
  network.rank(0).table.refresh(groups[0]);
  EXPECT_TRUE(groups[0].cause) << "rank 1 had not left this group";
}

TEST(ChannelTable, AbandonsAChannelAfterTheLastMessageIfItsSenderLeavesWithoutClosingIt) {
  Network network(2);
  const auto sending = network.rank(0).open(0, {1}, 1), receiving = network.rank(1).open(0, {1}, 1);
  sending->must_be_closed = receiving->must_be_closed = true;
  network.publish(0, *sending);
  network.rank(0).table.leave(network.rank(0).group);
  network.carry(0);
  network.deliver_all();
  EXPECT_FALSE(network.rank(1).table.is_abandoned(*receiving));
  network.rank(1).table.receive(*receiving);
  EXPECT_TRUE(network.rank(1).table.is_abandoned(*receiving));
  EXPECT_FALSE(network.rank(1).table.has_ended(*receiving));
}

TEST(ChannelTable, RecordsOneEndingPerPeerHoweverOftenItFails) {
  Rank rank(0, 3);
  for (int i = 0; i < 1000; ++i) {
    rank.table.end({.kind = ErrorKind::corrupt_message, .rank = 1});
    rank.table.end({.kind = ErrorKind::peer_lost, .rank = 1});
  }
  EXPECT_EQ(rank.table.num_endings(), 1U);
  EXPECT_EQ(rank.cause(), ErrorKind::corrupt_message);
}

TEST(ChannelTable, RejectsInvalidMessagesAndNotices) {
  const auto refuses = [](const std::function<void(ChannelTable&)>& act) {
    Rank rank(0, 3);
    rank.open(0, {1}, 1);
    const auto receiving = rank.open(1, {0}, 1);
    const std::uint64_t key = receiving->key;
    rank.table.apply(1, {.kind = Notice::Kind::opened, .key = key, .group = rank.group.key(), .window = 1});
    EXPECT_THROW(act(rank.table), CorruptMessage);
  };
  const std::uint64_t sent = Rank(0, 3).open(0, {1}, 1)->key, received = Rank(0, 3).open(1, {0}, 1)->key;
  refuses([&](ChannelTable& table) { table.arrive(2, received, {}); });
  refuses([&](ChannelTable& table) { table.arrive(1, sent, {}); });
  refuses([&](ChannelTable& table) { table.arrive(1, 77, {}); });
  refuses([&](ChannelTable& table) { table.arrive(1, received, {}), table.arrive(1, received, {}); });
  refuses([&](ChannelTable& table) { table.apply(1, {.kind = Notice::Kind::received, .key = sent, .count = 1}); });
  refuses([&](ChannelTable& table) { table.apply(2, {.kind = Notice::Kind::received, .key = sent}); });
  refuses([&](ChannelTable& table) { table.apply(2, {.kind = Notice::Kind::receiver_closed, .key = sent}); });
  for (const std::uint64_t key : {sent, std::uint64_t{77}}) {
    refuses([&](ChannelTable& table) {
      for (int i = 0; i < 2; ++i) table.apply(1, {.kind = Notice::Kind::receiver_closed, .key = key});
    });
  }
  refuses([&](ChannelTable& table) { table.apply(2, {.kind = Notice::Kind::sender_closed, .key = received}); });
  refuses([&](ChannelTable& table) { table.apply(1, {.kind = Notice::Kind::opened, .key = received, .window = 1}); });
  refuses([&](ChannelTable& table) { table.apply(1, {.kind = Notice::Kind::opened, .key = 78, .window = 0}); });
  refuses([&](ChannelTable& table) { table.apply(1, {.kind = static_cast<Notice::Kind>(99), .key = 78}); });
}

}  // namespace
}  // namespace levada
