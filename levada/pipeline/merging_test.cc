#include <gtest/gtest.h>

#include <algorithm>

#include "levada/base/refusal_testing.h"
#include "levada/pipeline/graph_testing.h"
#include "levada/pipeline/open_graph_testing.h"

namespace levada::pipeline::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Graph from(std::int64_t begin, std::int64_t end) {
  return Graph::source(range(begin, end));
}

TEST(Concat, YieldsOneInputAfterTheOther) {
  EXPECT_THAT(numbers_of(Graph::join(Concat{}, {from(0, 2), from(9, 9), from(5, 8)})), ElementsAre(0, 1, 5, 6, 7));
  EXPECT_THAT(numbers_of(Graph::join(Concat{}, {from(0, 0)})), IsEmpty());
}

TEST(Concat, SkipsThroughItsInputs) {
  const auto graph = Graph::join(Concat{}, {from(0, 5), from(10, 15)});
  for (std::int64_t items = 0; items <= 12; ++items) {
    Opened opened(graph);
    EXPECT_EQ(opened.iterator().skip(items), std::min<std::int64_t>(items, 10));
    EXPECT_EQ(opened.items().size(), 10u - static_cast<std::size_t>(std::min<std::int64_t>(items, 10)));
  }
}

TEST(Concat, SkipsItemsOfAForkWhoseOtherBranchIsFetchedAhead) {
  const auto branches = from(0, 40).fork(2, 16);
  Opened opened(Graph::join(Concat{}, {branches[0], branches[1].then(Prefetch{64})}));
  EXPECT_EQ(opened.iterator().skip(78), 78);
  EXPECT_THAT(opened.items(), ElementsAre(38, 39));
}

TEST(Zip, SkipsAsManyItemsAsTheShortestInputHas) {
  std::int64_t made = 0;
  const auto counted = mapped([&](auto i) { return ++made, i; });
  const auto graph = Graph::join(Zip{}, {from(0, 9).then(counted), from(10, 15)});
  for (std::int64_t items = 0; items <= 7; ++items) {
    Opened opened(graph);
    made = 0;
    EXPECT_EQ(opened.iterator().skip(items), std::min<std::int64_t>(items, 5));
    EXPECT_EQ(made, 0);
    EXPECT_EQ(opened.items().size(), 5u - static_cast<std::size_t>(std::min<std::int64_t>(items, 5)));
  }
}

TEST(Zip, SkipsItemsOfAForkWithASmallBuffer) {
  for (const bool prefetches : {false, true}) {
    auto branches = from(0, 100).fork(2, 3);
    if (prefetches) {
      for (auto& branch : branches) branch = branch.then(Prefetch{2});
    }
    Opened opened(Graph::join(Zip{}, {branches[0], branches[1]}));
    EXPECT_EQ(opened.iterator().skip(98), 98);
    EXPECT_THAT(opened.items(), ElementsAre(Tree::tuple({98, 98}), Tree::tuple({99, 99})));
  }
}

TEST(Interleave, TakesTurnsWithoutWeights) {
  const auto inputs = {from(0, 4), from(10, 12), from(20, 29)};
  EXPECT_THAT(numbers_of(Graph::join(Interleave{}, inputs)), ElementsAre(0, 10, 20, 1, 11, 21, 2));
  EXPECT_THAT(numbers_of(Graph::join(Interleave{.weights = {}, .stop = StopAt::last_end}, inputs)),
              ElementsAre(0, 10, 20, 1, 11, 21, 2, 22, 3, 23, 24, 25, 26, 27, 28));
}

TEST(Interleave, DrawsByWeight) {
  constexpr std::int64_t each = 100'000;
  const auto graph =
      Graph::join(Interleave{.weights = {6, 3, 1}}, {from(0, each), from(each, 2 * each), from(2 * each, 3 * each)});
  const auto drawn = numbers_of(graph);
  std::vector<std::int64_t> counts(3);
  std::vector<std::int64_t> next = {0, each, 2 * each};
  for (const auto number : drawn) {
    const auto input = static_cast<std::size_t>(number / each);
    EXPECT_EQ(number, next[input]++) << "the items of each input keep their order";
    ++counts[input];
  }
  EXPECT_EQ(counts[0], each) << "the first input to end ends the stage";
  EXPECT_NEAR(static_cast<double>(counts[1]) / each, 3 / 6., 0.01);
  EXPECT_NEAR(static_cast<double>(counts[2]) / each, 1 / 6., 0.01);
}

TEST(Interleave, YieldsEachItemOnceUntilAllInputsEnd) {
  const auto graph = [](std::optional<std::uint64_t> seed) {
    return Graph::join(Interleave{.weights = {1, 0.3, 1e-9}, .stop = StopAt::last_end, .seed = seed},
                       {from(0, 50), from(50, 60), from(60, 61)});
  };
  auto numbers = numbers_of(graph(1));
  EXPECT_EQ(numbers, numbers_of(graph(1)));
  EXPECT_NE(numbers, numbers_of(graph(2)));
  EXPECT_NE(Opened(graph(1), {}, 1).numbers(), numbers) << "another order in each epoch";
  std::ranges::sort(numbers);
  EXPECT_EQ(numbers, numbers_of(from(0, 61)));
}

TEST(Interleave, RestartsInputsUntilEachHasEndedOnce) {
  const auto cycle = [](std::vector<Graph> inputs, std::vector<double> weights = {}) {
    for (auto& input : inputs) input = input.then(Repeat{});
    return numbers_of(Graph::join(Interleave{.weights = std::move(weights), .stop = StopAt::full_cycle}, inputs));
  };
  EXPECT_THAT(cycle({from(0, 4), from(10, 12)}), ElementsAre(0, 10, 1, 11, 2, 10, 3, 11));
  EXPECT_THAT(cycle({from(0, 4), from(9, 9), from(10, 12)}), ElementsAre(0, 10, 1, 11, 2, 10, 3, 11)) << "one is empty";
  EXPECT_THAT(cycle({from(0, 0), from(9, 9)}), IsEmpty());
  EXPECT_THAT(cycle({from(0, 3)}), ElementsAre(0, 1, 2));

  auto numbers = cycle({from(0, 1000), from(1000, 1100)}, {1, 1});
  EXPECT_EQ(std::ranges::count_if(numbers, [](auto number) { return number < 1000; }), 1000);
  EXPECT_NEAR(static_cast<double>(numbers.size()), 2000, 200);
  std::ranges::sort(numbers);
  EXPECT_EQ(std::unique(numbers.begin(), numbers.end()) - numbers.begin(), 1100);

  EXPECT_THAT(refusal([] { Graph::join(Interleave{.stop = StopAt::full_cycle}, {from(0, 1).then(Repeat{2})}); }),
              HasSubstr("stage \"interleave\": input \"repeat\" is not an endless repeat"));
}

TEST(Interleave, RejectsInvalidWeights) {
  const auto refusal_of = [](std::vector<double> weights) {
    return refusal([&] { Graph::join(Interleave{.weights = std::move(weights)}, {from(0, 1), from(0, 1)}); });
  };
  EXPECT_THAT(refusal_of({1}), HasSubstr("stage \"interleave\": it has 1 weights for 2 inputs"));
  EXPECT_THAT(refusal_of({1, 0}), HasSubstr("a weight is 0"));
  EXPECT_THAT(refusal_of({1, std::numeric_limits<double>::infinity()}), HasSubstr("a weight is inf"));
  EXPECT_THAT(refusal_of({std::numeric_limits<double>::quiet_NaN(), 1}), HasSubstr("a weight is nan"));
  EXPECT_THAT(refusal([] {
                Graph::join(Interleave{.seed = 3}, {from(0, 1), from(0, 1)});
              }),
              HasSubstr("a seed requires weights"));
}

Graph lengths(const std::vector<std::int64_t>& given, const BucketBatch& batch) {
  return Graph::source(trees({given.begin(), given.end()})).then(batch);
}

TEST(BucketBatch, BatchesItemsOfSimilarLength) {
  const std::vector<std::int64_t> given = {1, 9, 2, 10, 25, 3, 11, 4, 12};
  BucketBatch batch{.length = number_in, .boundaries = {10, 20}, .size = 3};
  EXPECT_THAT(items_of(lengths(given, batch)),
              ElementsAre(Tree::list({1, 9, 2}), Tree::list({10, 11, 12}), Tree::list({3, 4}), Tree::list({25})));
  batch.drop_last = true;
  EXPECT_THAT(items_of(lengths(given, batch)), ElementsAre(Tree::list({1, 9, 2}), Tree::list({10, 11, 12})));
}

TEST(BucketBatch, CountsPaddingTowardsMaxTokens) {
  const BucketBatch batch{.length = number_in, .boundaries = {}, .max_tokens = 20};
  EXPECT_THAT(items_of(lengths({5, 5, 5, 5, 5, 20, 0, 0, 7, 7, 6, 11}, batch)),
              ElementsAre(Tree::list({5, 5, 5, 5}), Tree::list({5}), Tree::list({20}), Tree::list({0, 0}),
                          Tree::list({7, 7}), Tree::list({6}), Tree::list({11})));
}

TEST(BucketBatch, CountsAnItemAsAtLeastOneToken) {
  const auto graph =
      lengths(std::vector<std::int64_t>(250, 0), {.length = number_in, .boundaries = {}, .max_tokens = 100});
  const auto batches = items_of(graph);
  const auto has = [](std::int64_t items) { return Tree::list(std::vector<Tree>(static_cast<std::size_t>(items), 0)); };
  EXPECT_THAT(batches, ElementsAre(has(100), has(100), has(50)));
  Opened opened(graph), resumed(graph);
  EXPECT_EQ(opened.items(1).size(), 1u);
  resumed.iterator().restore(opened.iterator().save());
  EXPECT_THAT(resumed.items(), ElementsAre(batches[1], batches[2]));
}

TEST(BucketBatch, NamesAnItemThatIsTooLong) {
  const BucketBatch batch{.length = number_in, .boundaries = {}, .max_tokens = 20};
  const auto failure = failure_of([&] { items_of(lengths({1, 21}, batch)); });
  EXPECT_EQ(failure.stage, "bucket_batch");
  EXPECT_EQ(failure.item, 1);
  EXPECT_THAT(failure_of([&] { items_of(lengths({-1}, batch)); }).message, HasSubstr("item 0 has a length of -1"));
}

TEST(BucketBatch, RejectsInvalidOptions) {
  const auto refusal_of = [](const BucketBatch& batch) { return refusal([&] { from(0, 1).then(batch); }); };
  EXPECT_THAT(refusal_of({.length = {}, .boundaries = {}, .size = 1}), HasSubstr("it has no function"));
  EXPECT_THAT(refusal_of({.length = number_in, .boundaries = {}}), HasSubstr("it needs size or max_tokens"));
  EXPECT_THAT(refusal_of({.length = number_in, .boundaries = {}, .size = 0}), HasSubstr("size is 0"));
  EXPECT_THAT(refusal_of({.length = number_in, .boundaries = {}, .max_tokens = 0}), HasSubstr("max_tokens is 0"));
  EXPECT_THAT(refusal_of({.length = number_in, .boundaries = {5, 5}, .size = 1}), HasSubstr("boundary 1 is 5"));
}

}  // namespace
}  // namespace levada::pipeline::testing
