#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <map>
#include <memory>
#include <thread>

#include "levada/base/refusal_testing.h"
#include "levada/pipeline/graph_testing.h"
#include "levada/pipeline/open_graph_testing.h"

namespace levada::pipeline::testing {
namespace {

TEST(ThreadedMap, KeepsTheOrderOfItems) {
  const Map map{.function = [](const Item& item) -> Item {
                  if (number_in(item) % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
                  return Tree(number_in(item) + 1);
                },
                .threads = 4};
  for (const std::int64_t size : {0, 1, 7, 8, 9, 200}) {
    EXPECT_EQ(numbers_of(Graph::source(range(0, size)).then(map)), numbers_of(Graph::source(range(1, size + 1))));
  }
}

TEST(ThreadedMap, CallsTheFunctionConcurrently) {
  std::latch all(3);
  const Map map{.function = [&](Item item) -> Item {
                  all.arrive_and_wait();
                  return item;
                },
                .threads = 3};
  EXPECT_EQ(numbers_of(Graph::source(range(0, 3)).then(map)).size(), 3u);
}

TEST(ThreadedMap, FailsAtTheItemThatFails) {
  Map map{.function = [](Item item) -> Item {
            if (number_in(item) % 10 == 7) throw std::runtime_error("unlucky");
            return item;
          },
          .threads = 3};
  const auto graph = Graph::source(range(0, 100)).then(map, "fragile");
  Opened opened(graph);
  for (std::int64_t i = 0; i < 7; ++i) ASSERT_EQ(number_in(*opened.iterator().next()), i);
  const auto failure = failure_of([&] { opened.iterator().next(); });
  EXPECT_EQ(failure.stage, "fragile");
  EXPECT_EQ(failure.item, 7);
  map.on_error = OnError::skip;
  Opened skipping(Graph::source(range(0, 100)).then(map));
  EXPECT_EQ(skipping.items().size(), 90u);
  EXPECT_EQ(skipping.counts()[1].skipped, 10);
}

TEST(ThreadedMap, ReturnsItemsBeforeAFailureOfAnEarlierStage) {
  const Map fails{.function = [](Item item) -> Item {
    if (number_in(item) == 5) throw std::runtime_error("broken");
    return item;
  }};
  const Map same{.function = [](Item item) { return item; }, .threads = 3};
  Opened opened(Graph::source(range(0, 100)).then(fails, "fails").then(same));
  for (std::int64_t i = 0; i < 5; ++i) ASSERT_EQ(number_in(*opened.iterator().next()), i);
  EXPECT_EQ(failure_of([&] { opened.iterator().next(); }).stage, "fails");
}

TEST(ThreadedMap, PullsAheadOnlyIfItNeedNotWait) {
  class Counting final : public Iterator {
   public:
    explicit Counting(std::int64_t& pulled) : pulled_(pulled) {}
    std::optional<Item> next() override { return Tree(pulled_++); }
    Cursor save() const override { return Tree(pulled_); }
    void restore(const Cursor&) override {}

   private:
    std::int64_t& pulled_;
  };
  std::int64_t pulled = 0, at_hand = 0;
  const auto graph = Graph::source(range(0, 1)).then(mapped_on_threads([](std::int64_t i) { return i; }));
  const TreeItemTraits traits;
  Counts counts(graph.stages().size());
  RuntimeOptions options{.traits = traits, .open_context = {}, .process = "process 42", .counts = counts};
  options.would_wait = [&] { return pulled >= at_hand; };
  std::map<int, IteratorPtr> instead;
  instead.emplace(0, std::make_unique<Counting>(pulled));
  const auto iterator = open(graph, graph.end(), options, std::move(instead));
  EXPECT_EQ(number_in(*iterator->next()), 0);
  EXPECT_EQ(pulled, 1) << "it waits for the item that it needs";
  at_hand = 4;
  for (std::int64_t i = 1; i < 4; ++i) EXPECT_EQ(number_in(*iterator->next()), i);
  EXPECT_EQ(pulled, 4);
  at_hand = 100;
  EXPECT_EQ(number_in(*iterator->next()), 4);
  EXPECT_EQ(pulled, 8);
}

TEST(ThreadedMap, SkipsWithoutCallingTheFunction) {
  std::atomic<int> calls = 0;
  const auto counted = mapped_on_threads([&](std::int64_t i) { return ++calls, i; });
  const auto graph = Graph::source(range(0, 100)).then(counted);
  Opened opened(graph);
  EXPECT_EQ(opened.iterator().skip(90), 90);
  EXPECT_EQ(calls, 0);
  const auto skipped = opened.iterator().save();
  EXPECT_EQ(number_in(*opened.iterator().next()), 90);
  EXPECT_EQ(opened.iterator().skip(3), 3);
  const auto begun = opened.iterator().save();
  EXPECT_EQ(number_in(*opened.iterator().next()), 94);
  Opened at_skipped(graph), at_begun(graph);
  at_skipped.iterator().restore(skipped);
  EXPECT_EQ(at_skipped.iterator().skip(2), 2);
  EXPECT_EQ(number_in(*at_skipped.iterator().next()), 92);
  at_begun.iterator().restore(begun);
  EXPECT_EQ(number_in(*at_begun.iterator().next()), 94);
  EXPECT_EQ(at_begun.iterator().skip(100), 5);
}

TEST(ThreadedMap, MakesFewUnrequestedItems) {
  std::atomic<int> calls = 0;
  {
    const Map map{.function = [&](Item item) -> Item {
                    ++calls;
                    return item;
                  },
                  .threads = 2};
    Opened opened(Graph::source(range(0, 1'000'000)).then(map).then(Take{3}));
    EXPECT_EQ(opened.items().size(), 3u);
  }
  EXPECT_LE(calls, 8);
}

TEST(ThreadedMap, RejectsANegativeNumberOfThreads) {
  EXPECT_THAT(levada::refusal([] {
                Graph::source(range(0, 1)).then(Map{[](Item item) { return item; }, OnError::raise, -1});
              }),
              ::testing::HasSubstr("threads is -1"));
}

}  // namespace
}  // namespace levada::pipeline::testing
