#include "levada/pipeline/open_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "levada/pipeline/open_graph_testing.h"

namespace levada::pipeline::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ints = std::vector<std::int64_t>;

Ints iota(std::int64_t from, std::int64_t to) {
  Ints all(static_cast<std::size_t>(std::max<std::int64_t>(to - from, 0)));
  std::iota(all.begin(), all.end(), from);
  return all;
}

constexpr std::int64_t item_counts[] = {0, 1, 2, 101};

TEST(OpenGraph, YieldsTheItemsOfItsSource) {
  for (const auto size : item_counts) EXPECT_EQ(numbers_of(first_numbers(size)), iota(0, size));
}

TEST(OpenGraph, MapsAndFilters) {
  const auto graph =
      first_numbers(10).then(mapped([](auto i) { return i * i; })).then(kept([](auto i) { return i % 2 == 1; }));
  EXPECT_THAT(numbers_of(graph), ElementsAre(1, 9, 25, 49, 81));
  EXPECT_THAT(numbers_of(first_numbers(0).then(mapped([](auto i) { return i; }))), IsEmpty());
}

TEST(OpenGraph, YieldsTheItemsOfEachIteratorOfAFlatMap) {
  EXPECT_THAT(numbers_of(first_numbers(6).then(several(3))), ElementsAre(10, 20, 21, 40, 50, 51));
  EXPECT_THAT(numbers_of(first_numbers(6).then(several(1))), IsEmpty());
}

TEST(OpenGraph, BatchesAndUnbatches) {
  const auto batches = items_of(first_numbers(5).then(Batch{2}));
  EXPECT_THAT(batches, ElementsAre(Tree::list({0, 1}), Tree::list({2, 3}), Tree::list({4})));
  EXPECT_EQ(items_of(first_numbers(5).then(Batch{2, true})).size(), 2u);
  EXPECT_EQ(items_of(first_numbers(4).then(Batch{2, true})).size(), 2u);
  for (const auto size : item_counts)
    EXPECT_EQ(numbers_of(first_numbers(size).then(Batch{7}).then(Unbatch{})), iota(0, size));
  EXPECT_EQ(items_of(first_numbers(3).then(Batch{std::numeric_limits<std::int64_t>::max()})).size(), 1u);
}

TEST(OpenGraph, TakesAndSkips) {
  EXPECT_THAT(numbers_of(first_numbers(101).then(Skip{3}).then(Take{2})), ElementsAre(3, 4));
  EXPECT_THAT(numbers_of(first_numbers(2).then(Skip{3})), IsEmpty());
  EXPECT_THAT(numbers_of(first_numbers(2).then(Take{0})), IsEmpty());
  EXPECT_THAT(numbers_of(first_numbers(2).then(Take{9})), ElementsAre(0, 1));
}

TEST(OpenGraph, SeeksToTheFirstItemAfterASkip) {
  constexpr std::int64_t size = std::int64_t{1} << 50;
  Ints made;
  const auto all = first_numbers(size).then(mapped([&](auto i) { return made.emplace_back(i); }));
  const auto graph = all.then(Take{size - 2}).then(Skip{size - 9}).then(Skip{2});
  const Ints expected = {size - 7, size - 6, size - 5, size - 4, size - 3};
  Opened whole(graph);
  for (std::size_t i = 0; i <= expected.size(); ++i) {
    Opened resumed(graph), skipped(graph);
    resumed.iterator().restore(whole.iterator().save());
    EXPECT_EQ(skipped.iterator().skip(static_cast<std::int64_t>(i)), static_cast<std::int64_t>(i));
    const Ints rest(expected.begin() + static_cast<std::ptrdiff_t>(i), expected.end());
    made.clear();
    EXPECT_EQ(resumed.numbers(), rest);
    EXPECT_EQ(skipped.numbers(), rest);
    EXPECT_EQ(made.size(), 2 * rest.size());
    whole.items(1);
  }
  EXPECT_EQ(Opened(graph).iterator().skip(size), std::ssize(expected));
  EXPECT_THAT(numbers_of(all.then(Skip{size + 1})), IsEmpty());
}

TEST(OpenGraph, RequestsNoMoreItemsThanItTakes) {
  Ints asked;
  const auto graph = first_numbers(101).then(mapped([&](auto i) { return asked.emplace_back(i); })).then(Take{2});
  EXPECT_THAT(numbers_of(graph), ElementsAre(0, 1));
  EXPECT_THAT(asked, ElementsAre(0, 1));
}

TEST(OpenGraph, ZipEndsWithTheShortestInput) {
  const auto zipped = Graph::join(Zip{}, {first_numbers(3), first_numbers(2).then(mapped([](auto i) { return -i; }))});
  EXPECT_THAT(items_of(zipped), ElementsAre(Tree::tuple({0, 0}), Tree::tuple({1, -1})));
  EXPECT_THAT(items_of(Graph::join(Zip{}, {first_numbers(3), first_numbers(0)})), IsEmpty());
}

TEST(OpenGraph, ShufflesEachItemOnce) {
  for (const auto size : item_counts) {
    for (const std::int64_t buffer : {1, 2, 10, 1000}) {
      auto numbers = numbers_of(first_numbers(size).then(Shuffle{buffer, 5}));
      const bool in_order = numbers == iota(0, size);
      EXPECT_TRUE(in_order || buffer > 1);
      EXPECT_FALSE(in_order && buffer > 1 && size > 100);
      std::ranges::sort(numbers);
      EXPECT_EQ(numbers, iota(0, size));
    }
  }
}

TEST(OpenGraph, ShufflesDifferentlyPerEpochSeedAndStage) {
  const auto order = [](const Graph& graph, std::int64_t epoch, std::uint64_t seed) {
    return Opened(graph, {}, epoch, seed).numbers();
  };
  const auto shuffled = first_numbers(101).then(Shuffle{50});
  EXPECT_EQ(order(shuffled, 0, 1), order(shuffled, 0, 1));
  EXPECT_NE(order(shuffled, 0, 1), order(shuffled, 1, 1));
  EXPECT_NE(order(shuffled, 0, 1), order(shuffled, 0, 2));
  EXPECT_NE(order(shuffled, 0, 1), order(first_numbers(101).then(Shuffle{50}, "another"), 0, 1));
  const auto fixed = first_numbers(101).then(Shuffle{50, 3});
  EXPECT_EQ(order(fixed, 0, 1), order(fixed, 0, 2));
  EXPECT_NE(order(fixed, 0, 1), order(fixed, 1, 1));
}

TEST(OpenGraph, DrawsAlikeOnAllRanksOnlyBeforeAShard) {
  const auto on = [](const Graph& graph, int rank) { return Opened(graph, {.rank = rank, .ranks = 2}).numbers(); };
  const auto before = first_numbers(101).then(Shuffle{50}).then(Shard{});
  auto all = on(before, 0);
  const auto others = on(before, 1);
  all.insert(all.end(), others.begin(), others.end());
  std::ranges::sort(all);
  EXPECT_EQ(all, iota(0, 101));

  const auto after = first_numbers(100).then(Shard{}).then(mapped([](auto i) { return i / 2; })).then(Shuffle{50});
  EXPECT_NE(on(after, 0), on(after, 1));
}

TEST(OpenGraph, ShardsTakenInTurnsYieldTheWhole) {
  for (const bool at_source : {true, false}) {
    const auto all = at_source ? first_numbers(101) : first_numbers(101).then(mapped([](auto i) { return i; }));
    const auto graph = all.then(Shard{});
    for (const int workers : {1, 2, 3, 7}) {
      std::vector<Ints> parts;
      for (int worker = 0; worker < workers; ++worker) {
        parts.push_back(Opened(graph, {.role = Role::worker, .worker = worker, .workers = workers}).numbers());
      }
      Ints whole;
      for (std::size_t i = 0; i < 101; ++i) {
        whole.push_back(parts[i % parts.size()][i / parts.size()]);
      }
      EXPECT_EQ(whole, iota(0, 101));
    }
  }
}

TEST(OpenGraph, RepeatsWithTheSeedsOfFurtherEpochs) {
  EXPECT_THAT(numbers_of(first_numbers(2).then(Repeat{3})), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(numbers_of(first_numbers(2).then(Repeat{0})), IsEmpty());
  EXPECT_THAT(numbers_of(first_numbers(0).then(Repeat{})), IsEmpty());
  EXPECT_EQ(numbers_of(first_numbers(3).then(Repeat{}).then(Take{10})).size(), 10u);
  const auto numbers = numbers_of(first_numbers(50).then(Shuffle{50}).then(Repeat{2}));
  EXPECT_NE(Ints(numbers.begin(), numbers.begin() + 50), Ints(numbers.begin() + 50, numbers.end()));
}

TEST(OpenGraph, YieldsEachItemToEachBranch) {
  const auto branches = first_numbers(101).fork(2);
  const auto zipped = Graph::join(Zip{}, {branches[0], branches[1].then(mapped([](auto i) { return -i; }))});
  const auto items = items_of(zipped);
  ASSERT_EQ(items.size(), 101u);
  for (std::int64_t i = 0; i < 101; ++i) EXPECT_EQ(items[static_cast<std::size_t>(i)], Tree::tuple({i, -i}));
}

TEST(OpenGraph, ABranchMayBeAheadByAtMostTheBuffer) {
  const auto ahead = [](std::int64_t lead, std::int64_t buffer) {
    const auto branches = first_numbers(101).fork(2, buffer, "both");
    return Graph::join(Zip{}, {branches[0].then(Skip{lead}), branches[1]});
  };
  EXPECT_EQ(items_of(ahead(9, 10)).size(), 92u);
  const auto failure = failure_of([&] { items_of(ahead(30, 10)); });
  EXPECT_EQ(failure.stage, "both");
  EXPECT_EQ(failure.kind, ErrorKind::invalid_argument);
  EXPECT_EQ(
      failure.message,
      "its buffer of 10 items is full: branch \"branch\" is 10 items ahead of \"branch_2\", which is not read until "
      "the former has yielded more; raise buffer, or read the branches at the same pace");
  EXPECT_EQ(items_of(ahead(30, 31)).size(), 71u);
  EXPECT_EQ(failure_of([&] { items_of(ahead(30, 30)); }).stage, "both");
}

TEST(OpenGraph, AnyBranchOfAForkMayBeReadFirst) {
  const auto both = [](int ahead, std::int64_t buffer) {
    auto branches = first_numbers(101).fork(2, buffer, "both");
    auto& branch = branches[static_cast<std::size_t>(ahead)];
    branch = branch.then(Skip{9});
    return items_of(Graph::join(Zip{}, branches)).size();
  };
  for (const int ahead : {0, 1}) {
    EXPECT_EQ(both(ahead, 10), 92u);
    EXPECT_EQ(failure_of([&] { both(ahead, 8); }).stage, "both");
  }
}

/// Yields all items of its first input, then all of its second.
Transform chained() {
  class Chain final : public Iterator {
   public:
    explicit Chain(std::vector<IteratorPtr> inputs) : inputs_(std::move(inputs)) {}
    std::optional<Item> next() override {
      auto item = inputs_[0]->next();
      return item ? std::move(item) : inputs_[1]->next();
    }
    Cursor save() const override { return {}; }
    void restore(const Cursor&) override {}

   private:
    std::vector<IteratorPtr> inputs_;
  };
  return {"one after the other", [](std::vector<IteratorPtr> inputs, const OpenContext&) {
            return IteratorPtr(new Chain(std::move(inputs)));
          }};
}

TEST(OpenGraph, ReadingBranchesInSequenceNeedsABufferForAllItems) {
  const auto both = [](std::int64_t buffer) {
    return Graph::join(chained(), first_numbers(101).fork(2, buffer, "both")).then(mapped([](auto i) {
      return i + 1;
    }));
  };
  Opened opened(both(10));
  EXPECT_EQ(opened.items(10).size(), 10u);
  EXPECT_EQ(failure_of([&] { opened.iterator().next(); }).stage, "both");
  EXPECT_EQ(items_of(both(101)).size(), 202u);
}

TEST(OpenGraph, ABranchThatHasEndedDoesNotBlockOthers) {
  const auto branches = first_numbers(101).fork(2, 3);
  EXPECT_EQ(items_of(Graph::join(chained(), {branches[0].then(Take{2}), branches[1]})).size(), 103u);
}

TEST(OpenGraph, IgnoresDispatchAndCountsItemsPerStage) {
  const auto graph = first_numbers(101).then(Dispatch{}).then(kept([](auto i) { return i < 50; })).then(Batch{10});
  Opened opened(graph);
  EXPECT_EQ(opened.items().size(), 5u);
  Ints items;
  for (const auto& counts : opened.counts()) items.push_back(counts.items);
  EXPECT_THAT(items, ElementsAre(101, 101, 50, 5));
}

TEST(OpenGraph, EstimatesTheTimeOfEachStage) {
  const auto slow = [](auto i) {
    const auto until = Clock::now() + std::chrono::microseconds(200);
    while (Clock::now() < until) continue;
    return i;
  };
  Opened opened(first_numbers(101).then(mapped(slow)).then(Batch{1}));
  opened.items();
  EXPECT_GE(opened.counts()[1].busy_ns, 15'000'000);
  EXPECT_LT(opened.counts()[1].waited_ns, opened.counts()[1].busy_ns);
  EXPECT_GE(opened.counts()[2].waited_ns, 15'000'000);
}

TEST(OpenGraph, NamesTheStageItemAndProcessOfAFailure) {
  const auto fails_at = [](std::int64_t at) {
    return first_numbers(101).then(
        mapped([at](auto i) { return i == at ? throw std::runtime_error("no such item") : i; }), "bad");
  };
  for (const std::int64_t at : {0, 1, 100}) {
    Opened opened(fails_at(at).then(Batch{2}).then(Unbatch{}));
    Ints before;
    const auto failure = failure_of([&] {
      while (auto item = opened.iterator().next()) before.push_back(number_in(*item));
    });
    EXPECT_EQ(before, iota(0, at / 2 * 2));
    EXPECT_EQ(failure.stage, "bad");
    EXPECT_EQ(failure.item, at);
    EXPECT_EQ(failure.process, "process 42");
    EXPECT_EQ(failure.message, "no such item");
    EXPECT_FALSE(opened.iterator().next());
  }
}

TEST(OpenGraph, FillsInTheOriginOfAFailure) {
  const auto graph = first_numbers(5).then(mapped([](std::int64_t i) -> std::int64_t {
    if (i < 3) return i;
    throw StageFailed({.kind = ErrorKind::timeout, .message = "late", .traceback = "line 1", .exception = Bytes(3)});
  }));
  const auto failure = failure_of([&] { items_of(graph); });
  EXPECT_EQ(failure, (Failure{"map", "process 42", 3, ErrorKind::timeout, "late", "line 1", Bytes(3)}));
}

TEST(OpenGraph, SkipsAndCountsFailingItemsOnRequest) {
  const auto odd_fails = [](std::int64_t i) { return i % 2 == 1 ? throw std::runtime_error("odd") : i; };
  Opened map(first_numbers(101).then(mapped(odd_fails, OnError::skip)));
  EXPECT_EQ(map.numbers().size(), 51u);
  EXPECT_EQ(map.counts()[1].skipped, 50);
  Opened filter(first_numbers(101).then(kept(odd_fails, OnError::skip)));
  EXPECT_EQ(filter.numbers().size(), 50u);
  EXPECT_EQ(filter.counts()[1].skipped, 50);
  auto flat = several(4);
  flat.function = [&, of = flat.function](Item item) {
    return odd_fails(number_in(item)) < 0 ? nullptr : of(std::move(item));
  };
  flat.on_error = OnError::skip;
  Opened flat_map(first_numbers(8).then(flat));
  EXPECT_THAT(flat_map.numbers(), ElementsAre(20, 21, 60, 61));
  EXPECT_EQ(flat_map.counts()[1].skipped, 4);
}

TEST(OpenGraph, ThrowsFailuresThatEndTheProgramEvenIfFailingItemsAreSkipped) {
  const auto ends_at_three = [](std::int64_t i) -> std::int64_t {
    if (i == 3) throw StageFailed({.message = "Ctrl-C", .ends_program = true});
    return i;
  };
  auto flat = several(2);
  flat.function = [&, of = flat.function](Item item) {
    ends_at_three(number_in(item));
    return of(std::move(item));
  };
  flat.on_error = OnError::skip;
  auto on_threads = mapped(ends_at_three, OnError::skip);
  on_threads.threads = 2;
  const std::vector<Graph> graphs = {first_numbers(9).then(mapped(ends_at_three, OnError::skip)),
                                     first_numbers(9).then(kept(ends_at_three, OnError::skip)),
                                     first_numbers(9).then(flat), first_numbers(9).then(on_threads)};
  for (const auto& graph : graphs) {
    const auto failure = failure_of([&] { items_of(graph); });
    EXPECT_EQ(failure.message, "Ctrl-C");
    EXPECT_TRUE(failure.ends_program);
  }
}

TEST(OpenGraph, PropagatesExceptionsThatAreNotFailures) {
  struct Interrupted {};
  const auto graph =
      first_numbers(5).then(mapped([](std::int64_t) -> std::int64_t { throw Interrupted(); }, OnError::skip));
  EXPECT_THROW(items_of(graph), Interrupted);
}

TEST(OpenGraph, FailsInTheStageThatCannotBeOpened) {
  class Closed final : public ItemSource {
   public:
    std::string describe() const override { return "closed"; }
    bool divides() const override { return false; }
    IteratorPtr open(const OpenContext&, Partition) const override { throw SourceError("no such file"); }
  };
  const auto graph = Graph::source(std::make_shared<Closed>(), "files").then(Batch{2});
  const auto failure = failure_of([&] { Opened opened(graph); });
  EXPECT_EQ(failure.stage, "files");
  EXPECT_EQ(failure.kind, ErrorKind::source);
}

TEST(OpenGraph, UsesReplacementIteratorsUnchanged) {
  class Lost final : public Iterator {
   public:
    std::optional<Item> next() override {
      if (left_-- > 0) return Tree(left_);
      throw PeerLost(3, "gone");
    }
    Cursor save() const override { return Tree(left_); }
    void restore(const Cursor& cursor) override { left_ = std::get<std::int64_t>(cursor.leaf()); }

   private:
    std::int64_t left_ = 2;
  };
  const auto graph = first_numbers(101).then(Dispatch{}).then(mapped([](auto i) { return 10 * i; }, OnError::skip));
  const TreeItemTraits traits;
  Counts counts(3);
  const auto reopen = [&] {
    std::map<int, IteratorPtr> instead;
    instead.emplace(1, std::make_unique<Lost>());
    return open(graph, 2, {.traits = traits, .open_context = {}, .process = "", .counts = counts}, std::move(instead));
  };
  auto iterator = reopen();
  EXPECT_EQ(number_in(*iterator->next()), 10);
  const auto cursor = iterator->save();
  EXPECT_EQ(number_in(*iterator->next()), 0);
  EXPECT_THROW(iterator->next(), PeerLost);
  EXPECT_EQ(counts[1].items, 0);
  auto again = reopen();
  again->restore(cursor);
  EXPECT_EQ(number_in(*again->next()), 0);
}

TEST(OpenGraph, KeepsNaN) {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const auto graph = Graph::source(trees({nan, 1.0, nan})).then(Batch{2}).then(Unbatch{}).then(Shuffle{1});
  EXPECT_THAT(items_of(graph), ElementsAre(Tree(nan), Tree(1.0), Tree(nan)));
}

}  // namespace
}  // namespace levada::pipeline::testing
