#include "levada/exchange/planner.h"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <set>

#include "levada/base/error.h"
#include "levada/base/refusal_testing.h"

namespace levada {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Returns samples of one key with the given lengths.
SampleBatch samples(const std::vector<std::string>& ids, const std::vector<std::int64_t>& lengths,
                    const std::string& key = "tokens") {
  SampleBatch batch(ids);
  batch.set({key, dtypes::int64, {}}, Seqlens::one_each(lengths));
  return batch;
}

using Pieces = std::set<std::tuple<int, std::string, std::string, SequencePart>>;  // receiver, id, key, part

const std::string& key_name(const ExchangePlan& plan, std::size_t k) {
  return plan.samples().keys()[plan.keys()[k]].name;
}

Pieces delivered(const ExchangePlan& plan) {
  Pieces pieces;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const Multicast multicast = plan[i];
    for (const auto& [sample, part, keys] : multicast.items) {
      for_each_key(keys, [&, sample = sample, part = part](std::size_t k) {
        for (const int to : multicast.to) {
          const auto [at, is_new] =
              pieces.emplace(to, plan.samples().id(sample), key_name(plan, k), plan.parts()[part]);
          EXPECT_TRUE(is_new) << "twice to rank " << to;
        }
      });
    }
  }
  return pieces;
}

TEST(Planner, SendsAMissingItemOnceToAllReceivers) {
  SampleDirectory directory;
  directory.add(0, samples({"a", "b"}, {3, 5}));
  directory.add(1, samples({"c"}, {7}));
  const auto plan = plan_exchange(directory, {{{{0, 2, 3}, {"a", "c"}}}, {"tokens"}});
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_THAT(plan[0].to, ElementsAre(2, 3));
  EXPECT_EQ(plan[0].bytes, 24u);
  EXPECT_THAT(plan[1].to, ElementsAre(0, 2, 3));
  EXPECT_EQ(plan.moved_bytes(), 80u);
  EXPECT_EQ(plan.lower_bound_bytes(), 80u);
  EXPECT_EQ(plan.delivered_bytes(), 2 * 24u + 3 * 56);
  EXPECT_EQ(plan.busiest().rank, 1);
  EXPECT_THAT(plan.ranks(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(plan.edges(),
              ElementsAre(ExchangePlan::Edge{0, 2, 24}, ExchangePlan::Edge{0, 3, 24}, ExchangePlan::Edge{1, 0, 56},
                          ExchangePlan::Edge{1, 2, 56}, ExchangePlan::Edge{1, 3, 56}));
}

TEST(Planner, DeliversEmptySamples) {
  SampleDirectory directory;
  directory.add(0, samples({"a", "b", "c"}, {3, 0, 2}));
  const auto nothing = plan_exchange(directory, {{{{1}, {"b"}}}, {"tokens"}});
  EXPECT_EQ(nothing[0].bytes, 0u);
  EXPECT_EQ(nothing[0].items.size(), 1u);
}

TEST(Planner, SendsWithinAHostThatHasTheSample) {
  SampleDirectory directory;
  for (const int rank : {0, 2}) directory.add(rank, samples({"a"}, {3}));
  const std::vector<int> hosts{0, 0, 1, 1, 1, 2};
  EXPECT_EQ(plan_exchange(directory, {{{{3}, {"a"}}}, {"tokens"}}, hosts)[0].from, 2);
  EXPECT_EQ(plan_exchange(directory, {{{{1}, {"a"}}}, {"tokens"}}, hosts)[0].from, 0);
  const auto two = plan_exchange(directory, {{{{1, 3, 4}, {"a"}}}, {"tokens"}}, hosts);
  EXPECT_THAT(two.edges(),
              ElementsAre(ExchangePlan::Edge{0, 1, 24}, ExchangePlan::Edge{2, 3, 24}, ExchangePlan::Edge{2, 4, 24}));
  EXPECT_EQ(two.lower_bound_bytes(), 48u);
  // A host without the sample receives it from the host with the most other receivers, in the same messages.
  const auto three = plan_exchange(directory, {{{{1, 3, 4, 5}, {"a"}}}, {"tokens"}}, hosts);
  ASSERT_EQ(three.size(), 2u);
  EXPECT_THAT(three[1].to, ElementsAre(3, 4, 5));
  EXPECT_EQ(plan_exchange(directory, {{{{5}, {"a"}}}, {"tokens"}}, hosts).size(), 1u);
}

TEST(Planner, SpreadsTheLoadOverHolders) {
  SampleDirectory directory;
  std::vector<std::string> ids;
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 40; ++i) {
    ids.push_back("sample" + std::to_string(i));
    lengths.push_back(100 + i);
  }
  for (int rank = 0; rank < 4; ++rank) directory.add(rank, samples(ids, lengths));
  const auto plan = plan_exchange(directory, {{{{4, 5}, ids}}, {"tokens"}});
  EXPECT_EQ(plan.size(), 4u);
  EXPECT_LE(plan.busiest().bytes, plan.moved_bytes() / 4 * 102 / 100);
}

TEST(Planner, CutsSequencesAlongCp) {
  SampleDirectory directory;
  SampleBatch batch = samples({"a"}, {10});
  batch.set({"reward", dtypes::float32, {}}, Seqlens::one_each({1}));
  directory.add(0, batch);
  const auto model = ModelRanks::from(Mesh::parse("cp=2,tp=2"), 1);
  const ExchangeRequest request{destinations_of(model, {{"a"}}, Zigzag{"cp"}), {"tokens", "reward"}, {"tokens"}};
  const auto plan = plan_exchange(directory, request);
  EXPECT_EQ(plan.moved_bytes(), 80u + 4);
  EXPECT_EQ(plan.lower_bound_bytes(), 80u + 4);
  EXPECT_EQ(delivered(plan), (Pieces{{1, "a", "tokens", {0, 2, true}},
                                     {2, "a", "tokens", {0, 2, true}},
                                     {3, "a", "tokens", {1, 2, true}},
                                     {4, "a", "tokens", {1, 2, true}},
                                     {1, "a", "reward", {}},
                                     {2, "a", "reward", {}},
                                     {3, "a", "reward", {}},
                                     {4, "a", "reward", {}}}));
  // A rank that has its part, or the whole, receives nothing.
  directory.add(3, samples({"a"}, {10}), {1, 2, true});
  directory.add(4, samples({"a"}, {10}));
  for (const auto& [rank, id, key, part] : delivered(plan_exchange(directory, request))) {
    EXPECT_TRUE(rank < 3 || key == "reward");
  }
}

TEST(Planner, SendsTheSamplesOfADataParallelGroupToAllItsRanks) {
  const auto model = ModelRanks::from(Mesh::parse("pp=2,dp=2,tp=2"), 8);
  EXPECT_THAT(data_heads(model), ElementsAre(12, 14));
  const auto destinations = destinations_of(model, {{"a"}, {"b", "c"}});
  EXPECT_THAT(destinations[0].ranks, ElementsAre(8, 9, 12, 13));
  EXPECT_THAT(destinations[1].ranks, ElementsAre(10, 11, 14, 15));
  EXPECT_THAT(destinations[1].ids, ElementsAre("b", "c"));
  EXPECT_THAT(refusal([&] { destinations_of(model, {{"a"}}); }), HasSubstr("2 coordinates along the data axes"));
}

TEST(Planner, NamesTheImpossibleRequest) {
  SampleDirectory directory;
  directory.add(0, samples({"a", "b"}, {3, 5}));
  directory.add(1, samples({"a"}, {3}, "reward"));
  const auto wanting = [&](std::vector<std::string> ids, std::vector<std::string> keys) {
    return refusal([&] { plan_exchange(directory, {{{{2, 3}, ids}}, keys}); });
  };
  EXPECT_EQ(wanting({"a", "z", "y"}, {"tokens"}),
            "sample y, key tokens is wanted on ranks 2,3, but no rank holds it (the first of 2 errors)");
  EXPECT_EQ(wanting({"y"}, {"tokens", "reward"}),
            "sample y, keys reward, tokens is wanted on ranks 2,3, but no rank holds it");
  EXPECT_EQ(wanting({"y"}, {}), "sample y is wanted on ranks 2,3, but no rank holds it");
  EXPECT_EQ(wanting({"a"}, {"values"}), "sample a, key values is wanted on ranks 2,3, but no rank holds it");
  EXPECT_EQ(wanting({"b", "a"}, {"reward"}), "sample b, key reward is wanted on ranks 2,3, but no rank holds it");
  ExchangeRequest request{{{{2}, {"a", "b"}}}, {"tokens", "reward"}};
  request.allow_absent = true;
  EXPECT_EQ(delivered(plan_exchange(directory, request)).size(), 3u);
  request.keys.push_back("values");  // no rank has it
  EXPECT_EQ(delivered(plan_exchange(directory, request)).size(), 3u);
  request.keys = {"values"};
  EXPECT_EQ(plan_exchange(directory, request).size(), 0u);
  EXPECT_THAT(plan_exchange(directory, {{{{}, {"a"}}, {{2}, {}}}, {"tokens"}}).size(), 0u);
  EXPECT_THAT(refusal([&] { plan_exchange(directory, {{{{-1}, {"a"}}}, {"tokens"}}); }), HasSubstr("rank -1"));
  const ExchangeRequest two_parts{{{{2}, {"a"}, {0, 2}}, {{2}, {"a"}, {1, 2}}}, {"tokens"}, {"tokens"}};
  EXPECT_THAT(refusal([&] { plan_exchange(directory, two_parts); }),
              HasSubstr("different parts of sample a are wanted on rank 2"));
  // A rank that also wants the whole needs no part.
  for (const std::size_t whole : {0u, 1u, 2u}) {
    ExchangeRequest all = two_parts;
    all.destinations.insert(all.destinations.begin() + static_cast<std::ptrdiff_t>(whole), {{2}, {"a"}});
    EXPECT_EQ(delivered(plan_exchange(directory, all)), (Pieces{{2, "a", "tokens", {}}}));
  }
}

TEST(Planner, NamesAllRanksThatRequestAMissingSample) {
  SampleDirectory directory;
  directory.add(0, samples({"a"}, {3}));
  EXPECT_EQ(refusal([&] {
              plan_exchange(directory, {{{{3}, {"z", "a"}}, {{1}, {"z"}}}, {"tokens"}});
            }),
            "sample z, key tokens is wanted on ranks 1,3, but no rank holds it");
}

TEST(Planner, RejectsMoreBytesThanCanBeCounted) {
  constexpr std::int64_t most = std::int64_t{1} << 57;
  std::vector<std::string> ids;
  for (int i = 0; i < 16; ++i) ids.push_back("sample" + std::to_string(i));
  SampleDirectory directory;
  directory.add(0, samples(ids, std::vector<std::int64_t>(ids.size(), most - 1)));
  const auto plan_to = [&](std::vector<int> ranks) {
    return plan_exchange(directory, {{{std::move(ranks), ids}}, {"tokens"}});
  };
  EXPECT_EQ(plan_to({1}).delivered_bytes(), 16 * 8 * static_cast<std::uint64_t>(most - 1));
  EXPECT_EQ(refusal([&] { plan_to({1, 2}); }), "an exchange cannot move 2^64 bytes or more at once");
  directory.add(0, samples({"more"}, {most - 1}));
  ids.push_back("more");
  EXPECT_EQ(refusal([&] { plan_to({1}); }), "an exchange cannot move 2^64 bytes or more at once");
}

TEST(Planner, RejectsMorePartsThanItCanNumber) {
  SampleDirectory directory;
  ExchangeRequest request{{}, {"tokens"}, {"tokens"}};
  std::vector<std::string> ids;
  for (std::uint32_t i = 0; i <= UINT16_MAX; ++i) {  // the whole is one more
    ids.push_back("sample" + std::to_string(i));
    const SequencePart part{static_cast<std::uint16_t>(i % UINT16_MAX), UINT16_MAX, i >= UINT16_MAX};
    request.destinations.push_back({{1}, {ids.back()}, part});
  }
  directory.add(0, samples(ids, std::vector<std::int64_t>(ids.size(), 3)));
  EXPECT_EQ(refusal([&] { plan_exchange(directory, request); }),
            "an exchange moves at most 65536 parts of sequences at once");
  request.destinations.pop_back();
  EXPECT_EQ(plan_exchange(directory, request).parts().size(), 65536u);
}

/// Samples, holders and wants in plain data structures.
struct World {
  int ranks = 0;
  std::vector<int> host_of;
  std::map<std::string, std::map<std::string, std::int64_t>> lengths;              // by id and key
  std::map<std::string, std::map<std::string, std::map<int, SequencePart>>> held;  // by id, key and rank
  ExchangeRequest request;

  static World random(std::mt19937& random) {
    World world;
    world.ranks = 1 + static_cast<int>(random() % 6);
    for (int rank = 0; rank < world.ranks; ++rank) world.host_of.push_back(rank * 3 / world.ranks);
    const auto any_rank = [&] { return static_cast<int>(random() % static_cast<std::uint32_t>(world.ranks)); };
    const int samples = static_cast<int>(random() % 8);
    const bool cut = random() % 3 == 0;
    for (int s = 0; s < samples; ++s) {
      const auto id = "s" + std::to_string(s * 7919 % 100);
      for (const char* key : {"x", "y", "z"}) {
        world.lengths[id][key] = static_cast<std::int64_t>(random() % 9);
        world.held[id][key][any_rank()] = {};
        for (auto more = random() % 3; more > 0; --more) world.held[id][key][any_rank()] = {};
        if (cut && random() % 3 == 0) world.held[id][key].try_emplace(any_rank(), SequencePart{1, 2, false});
      }
    }
    for (auto count = random() % 5; count > 0; --count) {
      Destination destination;
      for (auto n = random() % 4; n > 0; --n) destination.ranks.push_back(any_rank());
      for (const auto& [id, keys] : world.lengths) {
        if (random() % 2 == 0) destination.ids.push_back(id);
      }
      if (cut && random() % 2 == 0) destination.part = {1, 2, false};
      world.request.destinations.push_back(destination);
    }
    world.request.keys = {"z", "x", "x"};
    if (cut) world.request.cut_keys = {"z"};
    return world;
  }

  /// Returns the directory, built in a random order.
  SampleDirectory directory(std::mt19937& random) const {
    std::vector<std::tuple<int, std::string, std::string, SequencePart>> facts;
    for (const auto& [id, keys] : held) {
      for (const auto& [key, by_rank] : keys) {
        for (const auto& [rank, part] : by_rank) facts.emplace_back(rank, id, key, part);
      }
    }
    std::ranges::shuffle(facts, random);
    std::ranges::stable_sort(facts, {}, [](const auto& fact) { return !std::get<3>(fact).is_whole(); });
    SampleDirectory made;
    for (const auto& [rank, id, key, part] : facts) {
      made.add(rank, ::levada::samples({id}, {lengths.at(id).at(key)}, key), part);
    }
    return made;
  }

  ExchangeRequest shuffled_request(std::mt19937& random) const {
    ExchangeRequest shuffled = request;
    std::ranges::shuffle(shuffled.destinations, random);
    std::ranges::shuffle(shuffled.keys, random);
    std::ranges::shuffle(shuffled.cut_keys, random);
    for (Destination& destination : shuffled.destinations) {
      std::ranges::shuffle(destination.ids, random);
      std::ranges::shuffle(destination.ranks, random);
    }
    return shuffled;
  }

  /// Returns the pieces that must arrive, computed rank by rank.
  Pieces lacking() const {
    std::map<std::tuple<int, std::string, std::string>, SequencePart> wanted;
    for (const Destination& destination : request.destinations) {
      for (const int rank : destination.ranks) {
        for (const std::string& id : destination.ids) {
          for (const std::string key : {"x", "z"}) {
            const SequencePart part = key == "z" ? destination.part : SequencePart{};
            auto& known = wanted.try_emplace({rank, id, key}, part).first->second;
            if (part.is_whole()) known = part;
          }
        }
      }
    }
    Pieces pieces;
    for (const auto& [what, part] : wanted) {
      const auto& [rank, id, key] = what;
      const auto& holders = held.at(id).at(key);
      const auto has = holders.find(rank);
      if (has == holders.end() || !(has->second.is_whole() || has->second == part)) pieces.emplace(rank, id, key, part);
    }
    return pieces;
  }
};

/// For one key of a sample: ranks that lack it and receive it together, and their candidate senders.
struct Share {
  std::set<int> to;
  std::vector<int> senders;
};

/// Returns one share per host that has both; hosts without a holder join the largest share.
std::vector<Share> shares(const World& world, const std::map<int, SequencePart>& holders, const std::set<int>& to) {
  const auto host = [&](int rank) { return world.host_of[static_cast<std::size_t>(rank)]; };
  std::map<int, Share> on_host;
  std::vector<int> all;
  for (const auto& [rank, part] : holders) {
    if (!part.is_whole()) continue;
    on_host[host(rank)].senders.push_back(rank);
    all.push_back(rank);
  }
  std::set<int> elsewhere;
  for (const int rank : to) (on_host.contains(host(rank)) ? on_host[host(rank)].to : elsewhere).insert(rank);
  std::vector<Share> shares;
  for (const auto& [of, share] : on_host) {
    if (!share.to.empty()) shares.push_back(share);
  }
  if (shares.empty()) return {{to, all}};
  std::ranges::max_element(shares, {}, [](const Share& share) { return share.to.size(); })->to.merge(elsewhere);
  return shares;
}

TEST(PlannerProperty, DeliversExactlyTheMissingItemsOnceToEachHost) {
  std::mt19937 random(33);
  for (int round = 0; round < 500; ++round) {
    const World world = World::random(random);
    const auto plan = plan_exchange(world.directory(random), world.request, world.host_of);
    const Pieces lacking = world.lacking();
    ASSERT_EQ(delivered(plan), lacking);

    std::map<std::tuple<std::string, std::string, SequencePart>, std::set<int>> once;
    for (const auto& [rank, id, key, part] : lacking) once[{id, key, part}].insert(rank);
    std::uint64_t least = 0;
    for (const auto& [what, to] : once) {
      const auto& [id, key, part] = what;
      least += 8 * static_cast<std::uint64_t>(tokens_in(part, world.lengths.at(id).at(key)).tokens()) *
               shares(world, world.held.at(id).at(key), to).size();
    }
    EXPECT_EQ(plan.moved_bytes(), least);
    EXPECT_EQ(plan.lower_bound_bytes(), least);

    for (std::size_t i = 0; i < plan.size(); ++i) {
      const Multicast multicast = plan[i];
      std::uint64_t bytes = 0;
      const std::set<int> to(multicast.to.begin(), multicast.to.end());
      for (const auto& [sample, part, keys] : multicast.items) {
        const std::string id(plan.samples().id(sample));
        for_each_key(keys, [&, sample = sample, part = part](std::size_t k) {
          const auto& key = plan.samples().keys()[plan.keys()[k]];
          const auto& holders = world.held.at(id).at(key.name);
          EXPECT_TRUE(holders.at(multicast.from).is_whole());
          EXPECT_TRUE(std::ranges::any_of(
              shares(world, holders, once.at({id, key.name, plan.parts()[part]})), [&](const Share& share) {
                return share.to == to && std::ranges::count(share.senders, multicast.from) > 0;
              }));
          bytes += bytes_of(key, plan.parts()[part], plan.samples().lengths(sample, plan.keys()[k]));
        });
      }
      EXPECT_EQ(multicast.bytes, bytes);
    }
  }
}

/// Items that one rank sends together, and the ranks that may send them.
struct Shipment {
  std::uint64_t bytes = 0;
  std::vector<int> senders;
};

/// Returns shipments: keys of a sample that the same ranks hold and lack travel together.
std::vector<Shipment> shipments(const World& world, const Pieces& lacking) {
  std::map<std::tuple<std::string, std::string, SequencePart>, std::set<int>> receivers;
  for (const auto& [rank, id, key, part] : lacking) receivers[{id, key, part}].insert(rank);
  std::map<std::tuple<std::string, std::set<int>, std::vector<int>, SequencePart>, std::uint64_t> bytes;
  for (const auto& [what, to] : receivers) {
    const auto& [id, key, part] = what;
    const auto tokens = tokens_in(part, world.lengths.at(id).at(key)).tokens();
    for (const Share& share : shares(world, world.held.at(id).at(key), to)) {
      bytes[{id, share.to, share.senders, part}] += 8 * static_cast<std::uint64_t>(tokens);
    }
  }
  std::vector<Shipment> all;
  for (const auto& [what, sum] : bytes) all.push_back({sum, std::get<2>(what)});
  return all;
}

void least_busiest(const std::vector<Shipment>& all, std::size_t next, std::vector<std::uint64_t>& loads,
                   std::uint64_t& best) {
  if (std::ranges::max(loads) >= best) return;
  if (next == all.size()) best = std::ranges::max(loads);
  for (std::size_t i = 0; next < all.size() && i < all[next].senders.size(); ++i) {
    loads[static_cast<std::size_t>(all[next].senders[i])] += all[next].bytes;
    least_busiest(all, next + 1, loads, best);
    loads[static_cast<std::size_t>(all[next].senders[i])] -= all[next].bytes;
  }
}

TEST(PlannerProperty, TheBusiestRankIsWithinATenthOfTheLowerBound) {
  std::mt19937 random(35);
  for (int round = 0; round < 500; ++round) {
    const World world = World::random(random);
    const auto plan = plan_exchange(world.directory(random), world.request, world.host_of);
    std::vector<std::uint64_t> loads(static_cast<std::size_t>(world.ranks), 0);
    std::uint64_t best = UINT64_MAX;
    least_busiest(shipments(world, world.lacking()), 0, loads, best);
    EXPECT_LE(plan.busiest().bytes * 10, best * 11);
    EXPECT_GE(plan.busiest().bytes, best);
  }
}

TEST(PlannerProperty, IsIndependentOfTheOrderOfTheRequest) {
  std::mt19937 random(34);
  for (int round = 0; round < 200; ++round) {
    const World world = World::random(random);
    const auto plan = plan_exchange(world.directory(random), world.request, world.host_of);
    const auto again = plan_exchange(world.directory(random), world.shuffled_request(random), world.host_of);
    EXPECT_EQ(plan, again);
    EXPECT_EQ(plan.to_json(true), again.to_json(true));
  }
}

TEST(PlannerProperty, ErrorsAreIndependentOfTheOrder) {
  std::mt19937 random(36);
  std::set<std::string> kinds;
  for (int round = 0; round < 500; ++round) {
    World world = World::random(random);
    const auto wrong = random() % 6;
    for (Destination& destination : world.request.destinations) {
      if (random() % 2 == 0) continue;
      if (wrong == 0) destination.ids.insert(destination.ids.end(), {"unknown2", "unknown1"});
      if (wrong == 1) destination.part = {static_cast<std::uint16_t>(random() % 2), 2, false};
      if (wrong == 2) destination.part = {static_cast<std::uint16_t>(3 + random() % 2), 2, false};
      if (wrong == 3) destination.ranks.push_back(-1 - static_cast<int>(random() % 2));
    }
    if (wrong == 4) world.request.cut_keys = {"never2", "never1"};
    if (wrong == 5) world.request.keys.insert(world.request.keys.end(), {"never2", "never1"});
    const auto text = [&](const ExchangeRequest& request) {
      return refusal([&] { plan_exchange(world.directory(random), request); });
    };
    const std::string first = text(world.request);
    for (int again = 0; again < 4; ++again) EXPECT_EQ(text(world.shuffled_request(random)), first);
    if (first != "nothing was refused") kinds.insert(first.substr(0, first.find(' ')));
  }
  EXPECT_THAT(kinds, ElementsAre("a", "cut_keys", "different", "sample"));
}

}  // namespace
}  // namespace levada
