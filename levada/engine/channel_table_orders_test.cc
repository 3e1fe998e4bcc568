#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/engine/channel_table_testing.h"

namespace levada {
namespace {

using test::Network;
using test::Rank;

/// One channel from rank 0 and the events that may happen to it.
struct Scenario {
  int size = 2;
  std::vector<int> to;
  int window = 1;
  int messages = 2;
  bool waits = false;  ///< whether the sender announces that it waits for room
  bool fails = true;   ///< whether a rank may abort or die
  /// Whether the channel is in a subgroup of all ranks, which they enter at any time, and leave before or after its
  /// parent.
  bool in_subgroup = false;
  bool only_leaves = false;    ///< whether ranks begin in the subgroup, with the channel open, and close it only by
                               ///< leaving
  bool never_departs = false;  ///< whether each rank stays in another subgroup
};

enum class Act : std::uint8_t {
  open,
  publish,
  receive,
  close_sending,
  close_receiving,
  enter_subgroup,
  leave_subgroup,
  leave,  ///< leaves the group of all ranks
  abort,  ///< aborts the channel's group
  abort_parent,
  die,
  wait,
  deliver
};
struct Step {
  Act act;
  int rank;
  int from = 0;  ///< sender, for deliver
};

class Model {
 public:
  explicit Model(const Scenario& scenario)
      : scenario_(scenario),
        network_(scenario.size),
        channels_(static_cast<std::size_t>(scenario.size)),
        states_(static_cast<std::size_t>(scenario.size)),
        subgroups_(static_cast<std::size_t>(scenario.size)) {
    for (int rank = 0; rank < scenario.size; ++rank) {
      if (scenario.never_departs) enter(rank, others_, "other");
      if (!scenario.only_leaves) continue;
      enter_subgroup(rank);
      if (rank == 0 || receives(rank)) open(rank);
    }
  }

  std::vector<Step> steps() {
    std::vector<Step> found;
    bool has_end = !scenario_.fails;
    for (const State& state : states_) has_end |= state.dead || state.aborted || state.aborted_parent;
    for (int rank = 0; rank < scenario_.size; ++rank) {
      const State& state = of(rank);
      for (int from = 0; from < scenario_.size; ++from) {
        if (!state.dead && !network_.queue(from, rank).empty()) found.push_back({Act::deliver, rank, from});
      }
      if (state.dead || state.departed) continue;
      if (!has_end) found.push_back({Act::die, rank});
      if (!state.left) {
        found.push_back({Act::leave, rank});
        const bool may_enter = scenario_.in_subgroup && !state.entered && !network_.rank(rank).cause();
        if (may_enter) found.push_back({Act::enter_subgroup, rank});
        if (scenario_.in_subgroup && !has_end) found.push_back({Act::abort_parent, rank});
      }
      Group* const group = group_of(rank);
      if (group == nullptr) continue;
      if (scenario_.in_subgroup) found.push_back({Act::leave_subgroup, rank});
      if (!has_end) found.push_back({Act::abort, rank});
      const bool failed = network_.rank(rank).cause(*group).has_value();
      const bool is_member = rank == 0 || receives(rank);
      if (is_member && !state.opened && !failed) found.push_back({Act::open, rank});
      if (!state.opened) continue;
      const ChannelState& channel = *channels_[static_cast<std::size_t>(rank)];
      if (can_publish(rank) && !failed) found.push_back({Act::publish, rank});
      if (scenario_.waits && channel.is_sending && !can_publish(rank) && !channel.has_announced_wait) {
        found.push_back({Act::wait, rank});
      }
      if (!channel.arrived.empty() && !group->aborted) found.push_back({Act::receive, rank});
      if (scenario_.only_leaves) continue;
      if (channel.is_sending) found.push_back({Act::close_sending, rank});
      if (channel.is_receiving) found.push_back({Act::close_receiving, rank});
    }
    return found;
  }

  void apply(const Step& step) {
    const int rank = step.rank;
    State& state = of(rank);
    Rank& it = network_.rank(rank);
    auto& channel = channels_[static_cast<std::size_t>(rank)];
    switch (step.act) {
      case Act::open: open(rank); break;
      case Act::publish: network_.publish(rank, *channel); break;
      case Act::wait: it.table.ask_for_room(*channel); break;
      case Act::receive: {
        const Arrival arrival = it.table.receive(*channel);
        EXPECT_EQ(arrival.id, state.num_received++) << "messages arrive in order, each once";
        break;
      }
      case Act::close_sending: it.table.close(*channel, End::sending); break;
      case Act::close_receiving: it.table.close(*channel, End::receiving); break;
      case Act::enter_subgroup: enter_subgroup(rank); break;
      case Act::leave_subgroup:
        leave(rank, *group_of(rank), state.left);
        state.left_subgroup = true;
        break;
      case Act::leave:
        state.stayed = scenario_.in_subgroup && group_of(rank) != nullptr;
        leave(rank, it.group, !state.stayed);
        state.left = true;
        break;
      case Act::abort:
        state.aborted = true;
        abort(rank, group_of(rank)->key());
        break;
      case Act::abort_parent:
        state.aborted_parent = true;
        abort(rank, it.group.key());
        break;
      case Act::die:
        state.dead = true;
        network_.send_all(rank, {.kind = ErrorKind::peer_lost, .rank = rank});
        break;
      case Act::deliver: network_.deliver(step.from, rank); return;
    }
    network_.carry(rank);
  }

  /// Checks the invariants of every state.
  void check() {
    const auto& sent = channels_[0];
    for (int rank = 0; rank < scenario_.size; ++rank) {
      for (Group* const group : groups_of(rank)) {
        const auto cause = network_.rank(rank).cause(*group);
        EXPECT_NE(cause, ErrorKind::invalid_argument);
        EXPECT_NE(cause, ErrorKind::corrupt_message);
      }
      if (!sent || !receives(rank) || !of(rank).opened) continue;
      const ChannelState& channel = *channels_[static_cast<std::size_t>(rank)];
      EXPECT_LE(channel.num_received, sent->num_sent);
      if (channel.is_receiving) {
        EXPECT_LE(sent->num_sent - channel.num_received, static_cast<std::uint64_t>(scenario_.window));
      }
    }
  }

  /// Checks the invariants that hold once everything has been delivered.
  void check_settled() {
    const bool sender_over = is_out(0) || (of(0).opened && !channels_[0]->is_sending);
    for (int rank = 0; rank < scenario_.size; ++rank) {
      const State& state = of(rank);
      if (state.dead || state.departed) continue;
      Rank& it = network_.rank(rank);
      for (Group* const group : groups_of(rank)) {
        EXPECT_EQ(it.cause(*group), expected_cause(*group)) << "an end reaches all members and no other rank";
      }
      const bool has_left = scenario_.in_subgroup ? state.left_subgroup : state.left;
      if (has_left && all_ended()) {
        EXPECT_EQ(it.table.num_channels(), 0U) << "a channel is forgotten even if it was never opened";
      }
      if (!state.opened) continue;
      const ChannelState& channel = *channels_[static_cast<std::size_t>(rank)];
      Group* const group = group_of(rank);
      if (group != nullptr && it.cause(*group)) continue;
      if (channel.is_receiving && channel.arrived.empty()) {
        EXPECT_EQ(it.table.sender_is_over(channel), sender_over) << "a receiver finds the actual end";
        if (of(0).opened) {
          EXPECT_EQ(channel.num_received, channels_[0]->num_sent) << "nothing is lost";
        }
      }
      if (channel.is_sending && !it.table.has_room(channel)) {
        EXPECT_TRUE(has_pending_receiver());
      }
      if (!channel.is_sending && !channel.is_receiving && all_ended()) {
        EXPECT_EQ(it.table.num_channels(), 0U) << "closed channels are forgotten";
      }
    }
  }
  bool is_settled() {
    for (int rank = 0; rank < scenario_.size; ++rank) {
      for (int from = 0; from < scenario_.size; ++from) {
        if (!of(rank).dead && !network_.queue(from, rank).empty()) return false;
      }
    }
    return true;
  }

  /// Returns a string that is equal for states that cannot be distinguished.
  std::string fingerprint() {
    ByteWriter writer;
    for (int rank = 0; rank < scenario_.size; ++rank) {
      const State& state = of(rank);
      Rank& it = network_.rank(rank);
      writer.put(static_cast<std::uint8_t>(state.opened | state.dead << 1 | state.departed << 2 | state.left << 3 |
                                           state.entered << 4 | state.left_subgroup << 5 | state.stayed << 6));
      writer.put(static_cast<std::uint8_t>(it.table.num_channels() | state.aborted << 4 | state.aborted_parent << 5));
      for (Group* const group : groups_of(rank)) {
        writer.put(static_cast<std::uint8_t>(it.cause(*group).value_or(ErrorKind{})));
        writer.put(static_cast<std::uint8_t>(group->aborted));
      }
      for (int other = 0; other < scenario_.size; ++other) {
        writer.put(static_cast<std::uint8_t>(it.table.has_departed(other) | it.table.is_lost(other) << 1));
        for (const auto& packet : network_.queue(other, rank)) put(writer, packet);
        writer.put(std::uint8_t{0xff});
      }
      if (const auto& channel = channels_[static_cast<std::size_t>(rank)]) put(writer, *channel);
    }
    return std::string(as_text(writer.view()));
  }

 private:
  struct State {
    bool opened = false, dead = false, departed = false, aborted = false, aborted_parent = false;
    bool left = false;  ///< has left the group of all ranks
    bool entered = false, left_subgroup = false;
    bool stayed = false;  ///< was in the subgroup when it left the group of all ranks
    std::uint64_t num_received = 0;
  };
  using Groups = std::vector<std::unique_ptr<Group>>;
  static constexpr std::uint64_t channel_key = 1;

  State& of(int rank) { return states_[static_cast<std::size_t>(rank)]; }
  /// Returns the channel's group, or null if the rank is not in it.
  Group* group_of(int rank) {
    const State& state = of(rank);
    if (scenario_.in_subgroup) {
      return state.entered && !state.left_subgroup ? subgroups_[static_cast<std::size_t>(rank)].get() : nullptr;
    }
    return state.left ? nullptr : &network_.rank(rank).group;
  }
  /// Returns the groups that the rank is in.
  std::vector<Group*> groups_of(int rank) {
    std::vector<Group*> found;
    if (!of(rank).left) found.push_back(&network_.rank(rank).group);
    if (Group* const group = group_of(rank); scenario_.in_subgroup && group != nullptr) found.push_back(group);
    return found;
  }
  /// Returns whether the rank has left the channel's group for good.
  bool is_out(int rank) {
    const State& state = of(rank);
    return state.departed || state.left_subgroup || (state.left && !state.stayed);
  }
  void enter(int rank, Groups& groups, std::string_view name) {
    Rank& it = network_.rank(rank);
    groups.resize(static_cast<std::size_t>(scenario_.size));
    auto& group = groups[static_cast<std::size_t>(rank)];
    group = std::make_unique<Group>(subgroup_of(it.group, it.keys, it.group.ranks, name));
    it.table.enter(*group);
  }
  void enter_subgroup(int rank) {
    of(rank).entered = true;
    enter(rank, subgroups_, "sub");
  }
  void open(int rank) {
    of(rank).opened = true;
    channels_[static_cast<std::size_t>(rank)] =
        network_.rank(rank).table.open(*group_of(rank), channel_key, 0, scenario_.to, scenario_.window);
  }
  /// Does what Endpoint::leave() does.
  void leave(int rank, Group& group, bool is_last) {
    State& state = of(rank);
    state.departed = is_last && !scenario_.never_departs;
    if (state.departed) network_.rank(rank).table.depart();
    else network_.rank(rank).table.leave(group);
  }
  void abort(int rank, std::uint64_t group) {
    const Ending ending{.kind = ErrorKind::engine, .group = group, .rank = rank};
    network_.rank(rank).table.end(ending);
    network_.send_all(rank, ending);
  }
  std::optional<ErrorKind> expected_cause(const Group& group) {
    const bool is_parent = scenario_.in_subgroup && group.is_root();
    for (int rank = 0; rank < scenario_.size; ++rank) {
      const State& state = of(rank);
      if (state.aborted_parent || (state.aborted && !is_parent)) return ErrorKind::engine;
      if (state.dead && !(is_parent ? state.left : is_out(rank))) return ErrorKind::peer_lost;
    }
    return std::nullopt;
  }
  bool receives(int rank) const { return rank_in(scenario_.to, rank) >= 0; }
  bool can_publish(int rank) {
    const ChannelState& channel = *channels_[static_cast<std::size_t>(rank)];
    return channel.is_sending && channel.num_sent < static_cast<std::uint64_t>(scenario_.messages) &&
           network_.rank(rank).table.has_room(channel);
  }
  bool has_pending_receiver() {
    for (const int rank : scenario_.to) {
      if (is_out(rank)) continue;
      if (!of(rank).opened || !channels_[static_cast<std::size_t>(rank)]->arrived.empty()) return true;
    }
    return false;
  }
  /// Returns whether no rank has yet to open the channel or to close an end of it.
  bool all_ended() {
    for (int rank = 0; rank < scenario_.size; ++rank) {
      if (is_out(rank) || !(rank == 0 || receives(rank))) continue;
      const auto& channel = channels_[static_cast<std::size_t>(rank)];
      if (!channel || channel->is_sending || channel->is_receiving) return false;
    }
    return true;
  }
  static void put(ByteWriter& writer, const Network::Packet& packet) {
    writer.put(static_cast<std::uint8_t>(packet.index()));
    if (const auto* const notice = std::get_if<Notice>(&packet)) {
      writer.put(static_cast<std::uint8_t>(notice->kind));
      writer.put(static_cast<std::uint8_t>(notice->count));
    } else if (const auto* const message = std::get_if<Network::Message>(&packet)) {
      writer.put(static_cast<std::uint8_t>(message->number));
    } else {
      writer.put(static_cast<std::uint8_t>(std::get<Ending>(packet).kind));
    }
  }
  static void put(ByteWriter& writer, const ChannelState& channel) {
    writer.put(static_cast<std::uint8_t>(channel.is_sending | channel.is_receiving << 1 | channel.sender_closed << 2 |
                                         channel.sender_waits << 3 | channel.has_announced_wait << 4));
    writer.put(static_cast<std::uint8_t>(channel.num_sent));
    writer.put(static_cast<std::uint8_t>(channel.num_received));
    writer.put(static_cast<std::uint8_t>(channel.arrived.size()));
    for (const auto& receiver : channel.receivers) {
      writer.put(static_cast<std::uint8_t>(receiver.closed | receiver.num_received << 1));
    }
  }

  Scenario scenario_;
  Network network_;
  std::vector<std::shared_ptr<ChannelState>> channels_;
  std::vector<State> states_;
  Groups subgroups_, others_;
};

/// Visits every state that any order of steps leads to. Returns the number of states.
std::size_t explore(const Scenario& scenario) {
  std::set<std::string> seen;
  std::vector<std::vector<Step>> open_paths{{}};
  while (!open_paths.empty() && !testing::Test::HasFailure()) {
    const std::vector<Step> path = std::move(open_paths.back());
    open_paths.pop_back();
    Model model(scenario);
    for (const Step& step : path) model.apply(step);
    if (!seen.insert(model.fingerprint()).second) continue;
    model.check();
    if (model.is_settled()) model.check_settled();
    for (const Step& step : model.steps()) {
      open_paths.push_back(path);
      open_paths.back().push_back(step);
    }
    if (testing::Test::HasFailure()) {
      for (const Step& step : path) {
        ADD_FAILURE() << "rank " << step.rank << " act " << static_cast<int>(step.act) << " from " << step.from;
      }
    }
  }
  return seen.size();
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool is_sanitized = true;  // the largest scenarios would take minutes
#else
constexpr bool is_sanitized = false;
#endif

TEST(ChannelTableOrders, InvariantsHoldInEveryOrderBetweenTwoRanks) {
  EXPECT_GT(explore({.size = 2, .to = {1}, .window = 1, .messages = 3, .waits = true}), 1000U);
  EXPECT_GT(explore({.size = 2, .to = {1}, .window = 2, .messages = 3}), 1000U);
  EXPECT_GT(explore({.size = 2, .to = {0, 1}, .window = 1, .messages = 2, .waits = true}), 1000U);
}

TEST(ChannelTableOrders, InvariantsHoldInEveryOrderBetweenThreeRanks) {
  EXPECT_GT(explore({.size = 3, .to = {1}, .window = 1, .messages = 1}), 1000U);
  EXPECT_GT(explore({.size = 3, .to = {1, 2}, .window = 1, .messages = 1, .fails = !is_sanitized}), 1000U);
}

TEST(ChannelTableOrders, InvariantsHoldInASubgroupThatRanksLeaveBeforeOrAfterItsParent) {
  EXPECT_GT(explore({.size = 2, .to = {1}, .messages = 1, .in_subgroup = true}), 1000U);
  EXPECT_GT(explore({.size = 2, .to = {1}, .messages = 1, .in_subgroup = true, .never_departs = true}), 1000U);
  if (is_sanitized) return;
  const Scenario of_three{
      .size = 3, .to = {1}, .messages = 0, .fails = false, .in_subgroup = true, .only_leaves = true};
  EXPECT_GT(explore(of_three), 1000U);
}

}  // namespace
}  // namespace levada
