#include "levada/exchange/assignment.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <set>

namespace levada {
namespace {

using Lists = std::vector<std::vector<int>>;
using Loads = std::vector<std::uint64_t>;

Loads loads_of(const std::vector<SendChoice>& choices, const std::vector<int>& senders, Loads loads) {
  for (std::size_t i = 0; i < choices.size(); ++i) loads[static_cast<std::size_t>(senders[i])] += choices[i].bytes;
  return loads;
}

/// Returns the least load of the busiest rank by exhaustive search.
std::uint64_t optimum(const std::vector<SendChoice>& choices, const Lists& lists, Loads& loads, std::size_t next) {
  if (next == choices.size()) return std::ranges::max(loads);
  std::uint64_t best = UINT64_MAX;
  for (const int rank : lists[choices[next].sources]) {
    loads[static_cast<std::size_t>(rank)] += choices[next].bytes;
    best = std::min(best, optimum(choices, lists, loads, next + 1));
    loads[static_cast<std::size_t>(rank)] -= choices[next].bytes;
  }
  return best;
}

struct Instance {
  std::vector<SendChoice> choices;
  Lists lists;
  Loads loads;
};

Instance random_instance(std::mt19937& random, std::size_t max_choices) {
  Instance instance;
  const std::size_t ranks = 2 + random() % 4;
  instance.loads.resize(ranks);
  for (auto& load : instance.loads) load = random() % 3 == 0 ? random() % 40 : 0;
  std::set<std::vector<int>> lists;
  for (std::size_t list = 1 + random() % 5; list > 0; --list) {
    std::set<int> members;
    while (members.size() < std::min<std::size_t>(ranks, 2 + random() % 2))
      members.insert(static_cast<int>(random() % ranks));
    lists.emplace(members.begin(), members.end());
  }
  instance.lists.assign(lists.begin(), lists.end());
  for (std::size_t i = random() % (max_choices + 1); i > 0; --i) {
    const std::uint64_t bytes = random() % 4 == 0 ? 10 : random() % 60;
    instance.choices.push_back({bytes, static_cast<std::uint32_t>(random() % instance.lists.size()), random()});
  }
  return instance;
}

void expect_allowed(const Instance& instance, const std::vector<int>& senders) {
  for (std::size_t i = 0; i < senders.size(); ++i) {
    EXPECT_TRUE(std::ranges::binary_search(instance.lists[instance.choices[i].sources], senders[i]));
  }
}

TEST(Assignment, IsOptimalForFewChoices) {
  std::mt19937 random(21);
  for (int round = 0; round < 600; ++round) {
    Instance instance = random_instance(random, 9);
    const auto senders = assign_senders(instance.choices, instance.lists, instance.loads);
    expect_allowed(instance, senders);
    const auto best = optimum(instance.choices, instance.lists, instance.loads, 0);
    // Less than a hundredth above the lower bound, assignments are not improved.
    EXPECT_LE(std::ranges::max(loads_of(instance.choices, senders, instance.loads)), best + best / 100);
  }
}

TEST(Assignment, IsNearlyOptimalWithoutAnExactSearch) {
  std::mt19937 random(22);
  for (int round = 0; round < 600; ++round) {
    Instance instance = random_instance(random, 9);
    const auto senders = assign_senders(instance.choices, instance.lists, instance.loads, {.exact_choices = 0});
    expect_allowed(instance, senders);
    const auto best = static_cast<double>(optimum(instance.choices, instance.lists, instance.loads, 0));
    // Among nine choices, a single one is a large part of the whole.
    EXPECT_LE(static_cast<double>(std::ranges::max(loads_of(instance.choices, senders, instance.loads))), best * 1.25);
  }
}

/// The same, pruning assignments that cannot beat `best`.
void search(const Instance& instance, Loads& loads, std::size_t next, std::uint64_t& best) {
  if (next == instance.choices.size()) best = std::ranges::max(loads);
  if (next == instance.choices.size() || best == std::ranges::max(instance.loads)) return;
  const SendChoice& choice = instance.choices[next];
  for (const int rank : instance.lists[choice.sources]) {
    std::uint64_t& load = loads[static_cast<std::size_t>(rank)];
    load += choice.bytes;
    if (load < best) search(instance, loads, next + 1, best);
    load -= choice.bytes;
  }
}

TEST(Assignment, IsWithinATenthOfTheOptimumForManyChoices) {
  std::mt19937 random(25);
  int searched = 0;
  while (searched < 400) {
    Instance instance = random_instance(random, 20);
    if (instance.choices.size() < 15) continue;
    ++searched;
    const auto senders = assign_senders(instance.choices, instance.lists, instance.loads);
    expect_allowed(instance, senders);
    const auto most = std::ranges::max(loads_of(instance.choices, senders, instance.loads));
    std::ranges::sort(instance.choices, std::greater(), &SendChoice::bytes);
    auto best = most;
    Loads loads = instance.loads;
    search(instance, loads, 0, best);
    EXPECT_LE(most * 10, best * 11);
  }
}

/// Rank r can send what lists {r, r+1} offer. The first lists offer most, so load must move from rank to rank.
TEST(Assignment, ShiftsLoadFromRankToRank) {
  constexpr int ranks = 12;
  Lists lists;
  for (int rank = 0; rank + 1 < ranks; ++rank) lists.push_back({rank, rank + 1});
  std::vector<SendChoice> choices;
  std::mt19937 random(23);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < 1200; ++i) {
    // The first lists have the most choices.
    const auto list = static_cast<std::uint32_t>(std::min({random() % lists.size(), random() % lists.size()}));
    choices.push_back({1 + random() % 100, list, i});
    sum += choices.back().bytes;
  }
  const auto senders = assign_senders(choices, lists, Loads(ranks, 0));
  const auto most = std::ranges::max(loads_of(choices, senders, Loads(ranks, 0)));
  // Only k + 1 ranks can send choices of the first k lists: no assignment is below the mean over these.
  std::uint64_t bound = 0, first = 0;
  for (std::size_t k = 0; k < lists.size(); ++k) {
    for (const SendChoice& choice : choices) first += choice.sources == k ? choice.bytes : 0;
    bound = std::max(bound, first / (k + 2));
  }
  EXPECT_GE(bound, sum / ranks);
  EXPECT_LE(most, bound + bound / 10);
}

/// Longest-first would leave rank 0 with less than the others.
TEST(Assignment, MovesLargeChoicesAwayFromTheBusiestRank) {
  Instance instance{.choices = {}, .lists = {{0, 1}, {1, 2}}, .loads = {0, 0, 0}};
  for (std::size_t i = 0; i < 400; ++i) instance.choices.push_back({400, 0, i});
  for (std::size_t i = 0; i < 1000; ++i) instance.choices.push_back({200, 1, i});
  const auto loads =
      loads_of(instance.choices, assign_senders(instance.choices, instance.lists, instance.loads), instance.loads);
  EXPECT_LE(std::ranges::max(loads), 120'000u * 101 / 100);
}

TEST(Assignment, MovesASingleChoiceThatMakesARankTheBusiest) {
  const Lists lists{{0, 1}, {0, 2}, {2, 3}};
  const std::vector<SendChoice> choices{{10, 0, 0}, {10, 2, 1}, {9, 1, 2}};
  const auto busiest = [&](const AssignmentLimits& limits) {
    const Loads none(4, 0);
    return std::ranges::max(loads_of(choices, assign_senders(choices, lists, none, limits), none));
  };
  EXPECT_EQ(busiest({.searched_choices = 0, .search_steps = 0}), 19u);
  EXPECT_EQ(busiest({.searched_choices = 0}), 10u);
}

TEST(Assignment, SearchesIfNoSingleMoveHelps) {
  const Lists lists{{0, 1}};
  std::vector<SendChoice> choices;
  for (const std::uint64_t bytes : {3, 3, 2, 2, 2}) choices.push_back({bytes, 0, choices.size()});
  const auto busiest = [&](const AssignmentLimits& limits) {
    const Loads none(2, 0);
    return std::ranges::max(loads_of(choices, assign_senders(choices, lists, none, limits), none));
  };
  EXPECT_EQ(busiest({.searched_choices = 0}), 7u);
  EXPECT_EQ(busiest({}), 6u);
}

TEST(Assignment, IsIndependentOfTheOrderOfChoices) {
  std::mt19937 random(24);
  for (int round = 0; round < 200; ++round) {
    Instance instance = random_instance(random, 40);
    const auto senders = assign_senders(instance.choices, instance.lists, instance.loads);
    std::vector<std::size_t> order(senders.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::shuffle(order, random);
    Instance shuffled = instance;
    for (std::size_t i = 0; i < order.size(); ++i) shuffled.choices[i] = instance.choices[order[i]];
    const auto again = assign_senders(shuffled.choices, shuffled.lists, shuffled.loads);
    for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(again[i], senders[order[i]]);
  }
}

TEST(Assignment, CountsTheElementsThatAMoveShiftsAsSteps) {
  // Only rank 1 can send the small ones, so it is overloaded unless many of the large ones move to rank 0.
  constexpr std::size_t large = 40'000, small = 20'000;
  Instance instance{.choices = {}, .lists = {{0, 1}, {1}}, .loads = {0, 0}};
  for (std::size_t i = 0; i < large; ++i) instance.choices.push_back({4, 0, i});
  for (std::size_t i = 0; i < small; ++i) instance.choices.push_back({2, 1, i});
  const auto assigned = [&](std::uint64_t steps) {
    return assign_senders(instance.choices, instance.lists, instance.loads, {.search_steps = steps});
  };
  const auto moves = [](const std::vector<int>& before, const std::vector<int>& after) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < before.size(); ++i) count += before[i] != after[i] ? 1 : 0;
    return count;
  };
  const auto before = assigned(0);
  // Each move shifts at least half of the list of large ones, a cache line of them per step.
  constexpr std::uint64_t steps = 200'000, steps_a_move = large / 2 / 16;
  const std::size_t made = moves(before, assigned(steps));
  EXPECT_GT(made, 0u);
  EXPECT_LE(made, steps / steps_a_move + 1);
  EXPECT_GT(moves(before, assigned(1'000'000'000)), 2 * (steps / steps_a_move));
}

}  // namespace
}  // namespace levada
