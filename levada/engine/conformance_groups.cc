#include <fmt/format.h>

#include <algorithm>

#include "levada/engine/conformance_kit.h"

namespace levada::conformance {
namespace {

std::vector<int> reversed(const Engine& engine) {
  auto ranks = all_ranks(engine);
  std::reverse(ranks.begin(), ranks.end());
  return ranks;
}

/// Sends one message from the group's `from` to all its members. The content depends on `seed`, which identifies the
/// group.
void exchange(const Handle& group, int from, std::uint64_t seed) {
  const auto channel = group->open(from, all_ranks(*group), 1);
  if (rank_of(*group) == from) send(*group, *channel, seed, 300);
  static_cast<void>(receive(*group, *channel, seed, 300));
}

void a_subgroup_has_its_own_order(const Handle& engine) {
  const auto group = engine->subgroup(reversed(*engine), "reversed");
  const EngineInfo& parent = engine->info();
  const EngineInfo& subgroup = group->info();
  expect(*engine, subgroup.size == parent.size, "a subgroup has as many ranks as named");
  expect(*engine, subgroup.rank == parent.size - 1 - parent.rank, "the i-th rank named is rank i of a subgroup");
  expect(*engine, subgroup.host_of.size() == parent.host_of.size(), "every rank of a subgroup has a host");
  const auto last = parent.host_of.size() - 1;
  for (std::size_t i = 0; i <= last; ++i) {
    expect(*engine, (subgroup.host_of[i] == subgroup.host_of[0]) == (parent.host_of[last - i] == parent.host_of[last]),
           "the ranks of a subgroup share the hosts that they shared before");
  }
  for (const int from : all_ranks(*group)) exchange(group, from, static_cast<std::uint64_t>(from));
  meet(*group);
  meet(*engine);
}

void every_subset_can_be_a_subgroup(const Handle& engine) {
  const int size = size_of(*engine);
  for (unsigned mask = 1; mask < (1U << size); mask += 1 + mask / 4) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) {
      if ((mask >> rank & 1U) != 0) ranks.push_back(rank);
    }
    std::rotate(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(mask % ranks.size()), ranks.end());
    if ((mask >> rank_of(*engine) & 1U) == 0) continue;
    const auto group = engine->subgroup(ranks, "subset");
    expect(*engine, ranks[static_cast<std::size_t>(rank_of(*group))] == rank_of(*engine), "ranks[i] becomes rank i");
    exchange(group, static_cast<int>(ranks.size()) - 1, mask);
  }
  meet(*engine);
}

void subgroups_nest(const Handle& engine) {
  Handle group = engine->subgroup(reversed(*engine), "level 1");
  for (int depth = 2; size_of(*group) > 1; ++depth) {
    exchange(group, 0, static_cast<std::uint64_t>(depth));
    auto ranks = reversed(*group);
    ranks.pop_back();
    if (rank_of(*group) == 0) break;
    group = group->subgroup(ranks, fmt::format("level {}", depth));
  }
  meet(*engine);
}

void subgroups_work_concurrently(const Handle& engine) {
  std::vector<int> ranks;
  for (int rank = rank_of(*engine) % 2; rank < size_of(*engine); rank += 2) ranks.push_back(rank);
  const auto group = engine->subgroup(ranks, "parity");
  std::vector<std::shared_ptr<Channel>> channels;
  std::vector<Flow> flows;
  const auto seed = [](const Channel& channel, int i) { return static_cast<std::uint64_t>(channel.from() * 1000 + i); };
  const auto bytes = [](int i) { return static_cast<std::size_t>(i % 7 * 100 + 1); };
  for (const int from : all_ranks(*group)) {
    channels.push_back(group->open(from, all_ranks(*group), 2));
    flows.push_back({.channel = channels.back().get(), .count = 50, .seed = seed, .bytes = bytes});
  }
  pump(*group, flows);
  meet(*engine);
}

void groups_of_the_same_ranks_do_not_mix(const Handle& engine) {
  const auto all = all_ranks(*engine);
  const auto a = engine->subgroup(all, "a");
  const auto b = engine->subgroup(all, "b");
  const auto a_again = engine->subgroup(all, "a");
  std::vector<Handle> groups{a, b, a_again, engine};
  std::vector<std::shared_ptr<Channel>> channels;
  for (const auto& group : groups) channels.push_back(group->open(0, all, 1));
  for (std::size_t i = 0; rank_of(*engine) == 0 && i < groups.size(); ++i) send(*groups[i], *channels[i], i, 100);
  for (std::size_t i = groups.size(); i-- > 0;) static_cast<void>(receive(*groups[i], *channels[i], i, 100));
  meet(*engine);
}

void a_subgroup_outlives_the_engine_it_was_made_from(const Handle& engine) {
  Handle parent = engine->subgroup(all_ranks(*engine), "parent");
  const Handle subgroup = parent->subgroup(reversed(*parent), "subgroup");
  parent.reset();
  for (const int from : all_ranks(*subgroup)) exchange(subgroup, from, 5);
  meet(*subgroup);
  meet(*engine);
}

void a_rank_that_left_the_parent_without_entering_a_subgroup_is_not_waited_for(const Handle& engine) {
  Handle parent = engine->subgroup(all_ranks(*engine), "parent");
  meet(*parent);
  const int last = size_of(*engine) - 1;
  Handle subgroup;
  std::shared_ptr<Channel> channel;
  if (rank_of(*engine) != last) {
    subgroup = parent->subgroup(all_ranks(*parent), "subgroup");
    channel = subgroup->open(last, all_ranks(*subgroup), 1);
  }
  parent.reset();
  meet(*engine);
  if (subgroup) {
    expect_eventually(*subgroup, "a channel ends if its sender left the parent without entering the subgroup",
                      [&] { return subgroup->try_receive(*channel).ended; });
  }
  meet(*engine);
}

void a_channel_belongs_to_one_engine(const Handle& engine) {
  const auto group = engine->subgroup(all_ranks(*engine), "other");
  const auto channel = group->open(rank_of(*group), {rank_of(*group)}, 1);
  Block block = filled(*engine, 1, 10);
  expect_throws<InvalidArgument>(*engine, "a channel of another engine is rejected",
                                 [&] { return engine->try_publish(*channel, block, 10); });
  expect_throws<InvalidArgument>(*engine, "a channel of another engine is rejected",
                                 [&] { return engine->try_receive(*channel); });
  meet(*engine);
}

void closing_a_channel_of_another_engine_changes_nothing(const Handle& engine) {
  const auto group = engine->subgroup(reversed(*engine), "other");
  const auto channel = group->open(0, all_ranks(*group), 1);
  engine->close(*channel, End::sending);
  meet(*engine);
  if (rank_of(*group) == 0) send(*group, *channel, 7, 300);
  static_cast<void>(receive(*group, *channel, 7, 300));
  meet(*engine);
}

void subgroup_rejects_invalid_arguments(const Handle& engine) {
  const int size = size_of(*engine);
  const int rank = rank_of(*engine);
  const auto refuses = [&](std::string_view sentence, std::vector<int> ranks) {
    expect_throws<InvalidArgument>(*engine, sentence, [&] { return engine->subgroup(ranks, "bad"); });
  };
  refuses("an empty subgroup is rejected", {});
  refuses("a rank out of range is rejected", {rank, size});
  refuses("a negative rank is rejected", {rank, -1});
  refuses("a rank named twice is rejected", {rank, rank});
  if (size > 1) refuses("a subgroup without the calling rank is rejected", {(rank + 1) % size});
  exchange(engine->subgroup(all_ranks(*engine), "good"), 0, 1);
  meet(*engine);
}

constexpr Case groups_list[] = {
    {"a subgroup has its own order", 1, a_subgroup_has_its_own_order},
    {"every subset can be a subgroup", 1, every_subset_can_be_a_subgroup},
    {"subgroups nest", 1, subgroups_nest},
    {"subgroups work concurrently", 1, subgroups_work_concurrently},
    {"groups of the same ranks do not mix", 1, groups_of_the_same_ranks_do_not_mix},
    {"a subgroup outlives the engine it was made from", 1, a_subgroup_outlives_the_engine_it_was_made_from},
    {"a rank that left the parent without entering a subgroup is not waited for", 2,
     a_rank_that_left_the_parent_without_entering_a_subgroup_is_not_waited_for},
    {"a channel belongs to one engine", 1, a_channel_belongs_to_one_engine},
    {"closing a channel of another engine changes nothing", 1, closing_a_channel_of_another_engine_changes_nothing},
    {"subgroup rejects invalid arguments", 1, subgroup_rejects_invalid_arguments},
};

}  // namespace

std::span<const Case> group_cases() {
  return groups_list;
}

}  // namespace levada::conformance
