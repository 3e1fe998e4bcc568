// Stages on separate threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "levada/pipeline/open_graph_testing.h"

namespace levada::pipeline::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::int64_t> iota(std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(Prefetch, KeepsTheOrder) {
  for (const std::int64_t size : {0, 1, 2, 101}) {
    for (const std::int64_t depth : {1, 2, 10, 1000}) {
      EXPECT_EQ(numbers_of(first_numbers(size).then(Prefetch{depth})), iota(size));
      EXPECT_EQ(
          numbers_of(
              first_numbers(size).then(Prefetch{depth}).then(mapped([](auto i) { return i; })).then(Prefetch{depth})),
          iota(size));
    }
  }
}

TEST(Prefetch, SkipsItemsWithoutMakingThemBeforeItsThreadStarts) {
  std::atomic<std::int64_t> made = 0;
  const auto counted = mapped([&](auto i) { return ++made, i; });
  const auto even = kept([](auto i) { return i % 2 == 0; });
  const auto numbers = first_numbers(300);
  for (const auto& before : {numbers, numbers.then(Prefetch{3}), numbers.then(Prefetch{3}).then(even)}) {
    const auto all = numbers_of(before);
    const auto graph = before.then(counted).then(Prefetch{2}).then(Prefetch{2});
    for (const std::size_t skipped : {1u, 100u, 400u}) {
      const auto there = std::min(skipped, all.size());
      made = 0;
      Opened opened(graph), resumed(graph);
      EXPECT_EQ(opened.iterator().skip(static_cast<std::int64_t>(skipped)), static_cast<std::int64_t>(there));
      EXPECT_EQ(made, 0);
      const std::vector rest(all.begin() + static_cast<std::ptrdiff_t>(there), all.end());
      resumed.iterator().restore(opened.iterator().save());
      EXPECT_EQ(opened.numbers(), rest);
      EXPECT_EQ(made, static_cast<std::int64_t>(rest.size()));
      EXPECT_EQ(resumed.numbers(), rest);
      EXPECT_EQ(made, 2 * static_cast<std::int64_t>(rest.size()));
    }
  }
}

TEST(Prefetch, SkipsAfterItsThreadHasStarted) {
  Opened opened(first_numbers(300).then(Prefetch{3}));
  EXPECT_EQ(opened.items(2).size(), 2u);
  EXPECT_EQ(opened.iterator().skip(8), 8);
  EXPECT_EQ(opened.items(1), std::vector<Tree>{10});
}

TEST(Prefetch, MakesAtMostItsDepthAheadOnAnotherThread) {
  std::atomic<std::int64_t> made = 0;
  std::atomic<bool> elsewhere = true;
  const auto here = std::this_thread::get_id();
  const auto graph = first_numbers(1000)
                         .then(mapped([&](auto i) {
                           elsewhere = elsewhere && std::this_thread::get_id() != here;
                           ++made;
                           return i;
                         }))
                         .then(Prefetch{5});
  Opened opened(graph);
  for (std::int64_t taken = 1; taken <= 100; ++taken) {
    opened.iterator().next();
    EXPECT_LE(made, taken + 5);
  }
  EXPECT_TRUE(elsewhere);
}

TEST(Prefetch, FailsInPlace) {
  const auto graph = first_numbers(9)
                         .then(mapped([](auto i) { return i == 5 ? throw std::runtime_error("bad") : i; }))
                         .then(Prefetch{3});
  Opened opened(graph);
  EXPECT_EQ(opened.items(5).size(), 5u);
  const auto failure = failure_of([&] { opened.iterator().next(); });
  EXPECT_EQ(failure.item, 5);
  EXPECT_FALSE(opened.iterator().next());
}

TEST(Prefetch, EndsAtAnyPosition) {
  for (int i = 0; i < 200; ++i) {
    Opened opened(first_numbers(1000).then(Prefetch{3}).then(Batch{2}).then(Prefetch{2}).then(Prefetch{1}));
    opened.items(static_cast<std::size_t>(i % 7));
  }
}

TEST(Prefetch, EndsOnceTheItemInProgressIsMade) {
  std::promise<void> begun, release;
  const auto graph = first_numbers(9)
                         .then(mapped([&](auto i) {
                           if (i == 1) {
                             begun.set_value();
                             release.get_future().wait();
                           }
                           return i;
                         }))
                         .then(Prefetch{3});
  auto opened = std::make_unique<Opened>(graph);
  opened->iterator().next();
  begun.get_future().wait();
  auto ended = std::async(std::launch::async, [&] { opened.reset(); });
  release.set_value();
  ended.get();
}

TEST(Prefetch, IsOmittedOnRequest) {
  const auto here = std::this_thread::get_id();
  bool same = true;
  const auto graph = first_numbers(9)
                         .then(mapped([&](auto i) {
                           same = same && std::this_thread::get_id() == here;
                           return i;
                         }))
                         .then(Prefetch{3});
  const TreeItemTraits traits;
  Counts counts(3);
  auto iterator =
      open(graph, 2, {.traits = traits, .open_context = {}, .process = "", .counts = counts, .prefetches = false});
  while (iterator->next()) continue;
  EXPECT_TRUE(same);
  EXPECT_EQ(counts[2].items, 9);
}

/// Two branches of a fork on separate threads, joined by one zip.
Graph forked(std::int64_t lead, std::int64_t buffer) {
  const auto branches = first_numbers(2000).then(Prefetch{3}).fork(2, buffer, "both");
  return Graph::join(Zip{}, {branches[0].then(Skip{lead}).then(Prefetch{4}), branches[1].then(Prefetch{4})});
}

TEST(Prefetch, BranchesOnSeveralThreadsYieldEachItem) {
  for (int round = 0; round < 20; ++round) {
    std::int64_t next = 0;
    for (const auto& item : items_of(forked(3, 10))) {
      ASSERT_EQ(item, Tree::tuple({next + 3, next}));
      ++next;
    }
    ASSERT_EQ(next, 1997);
  }
}

TEST(Prefetch, DetectsADeadlockOfBranchesOnSeveralThreads) {
  for (int round = 0; round < 20; ++round) {
    const auto failure = failure_of([] { items_of(forked(30, 10)); });
    EXPECT_EQ(failure.stage, "both");
    // The zip has item 30 of one branch, and the thread of the other has four.
    EXPECT_THAT(failure.message, HasSubstr("its buffer of 10 items is full"));
    EXPECT_EQ(failure_of([] { items_of(forked(30, 26)); }).stage, "both");
    EXPECT_EQ(items_of(forked(30, 27)).size(), 1970u);
  }
}

TEST(Prefetch, ABranchMayStallForOneOnAnotherThread) {
  const auto branches = first_numbers(2000).fork(2, 10);
  // Each takes its items once the other has had as many: both threads stall, and continue.
  const auto slow = branches[0].then(Batch{500}).then(Prefetch{1});
  const auto fast = branches[1].then(Prefetch{2000});
  EXPECT_EQ(items_of(Graph::join(Zip{}, {slow, fast})).size(), 4u);
}

TEST(Prefetch, OneBranchMayBeUnread) {
  for (int round = 0; round < 50; ++round) {
    const auto branches = first_numbers(300).then(Prefetch{2}).fork(2, 5);
    const auto first = branches[0].then(Prefetch{2}).then(Take{3}).then(Repeat{1});
    Opened opened(Graph::join(Zip{}, {branches[1].then(Prefetch{2}), first}));
    EXPECT_EQ(opened.items().size(), 3u);
  }
}

/// Returns whether `action` ends within half a minute; one that does not is abandoned.
bool ends(std::function<void()> action) {
  std::promise<void> promise;
  const auto ended = promise.get_future();
  std::thread([action = std::move(action), promise = std::move(promise)]() mutable {
    action();
    action = nullptr;
    promise.set_value();
  }).detach();
  return ended.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
}

/// Returns "" if the items are as expected, or the message if a fork's buffer is full; fails otherwise.
std::string outcome_of(const Graph& graph, std::size_t items) {
  std::string message;
  const auto run = [&] {
    try {
      EXPECT_EQ(items_of(graph).size(), items);
    } catch (const StageFailed& failed) {
      EXPECT_EQ(failed.kind(), ErrorKind::invalid_argument) << failed.what();
      message = failed.failure().message;
    }
  };
  if (!ends(run)) ADD_FAILURE() << "it waits forever";
  return message;
}

/// Two forks whose branches wait for each other crosswise: the branch that reads ahead in one lags in the other.
Graph crossed(std::int64_t lead, std::int64_t buffer) {
  const auto left = first_numbers(500).fork(2, buffer, "left"), right = first_numbers(500).fork(2, buffer, "right");
  const auto ahead = [&](const Graph& branch) { return branch.then(Skip{lead}).then(Prefetch{2}); };
  const auto first = Graph::join(Zip{}, {ahead(left[0]), right[1].then(Prefetch{2})}).then(Prefetch{2});
  const auto second = Graph::join(Zip{}, {ahead(right[0]), left[1].then(Prefetch{2})}).then(Prefetch{2});
  return Graph::join(Zip{}, {first, second});
}

TEST(Prefetch, ForksThatWaitForEachOtherProceedOrFail) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(outcome_of(crossed(30, 60), 470), "");
    EXPECT_THAT(outcome_of(crossed(30, 10), 470), HasSubstr("its buffer of 10 items is full"));
  }
}

TEST(Prefetch, DetectsAFullBufferIfOneThreadReadsAllBranches) {
  for (int round = 0; round < 20; ++round) {
    const auto branches = first_numbers(101).fork(2, 10);
    const auto zipped = Graph::join(Zip{}, {branches[0].then(Skip{30}), branches[1]}).then(Prefetch{3});
    EXPECT_THAT(outcome_of(zipped, 71), HasSubstr("its buffer of 10 items is full"));
  }
}

TEST(Prefetch, ABranchThatEndsReleasesTheSlowerOneWhileStopping) {
  for (int round = 0; round < 50; ++round) {
    const auto branches = first_numbers(300).then(Prefetch{2}).fork(2, 4);
    const auto few = branches[0].then(Prefetch{2}).then(Take{3});
    const auto then = Graph::join(Zip{}, {few, first_numbers(300)});
    const auto all = Graph::join(Zip{}, {branches[1].then(Prefetch{1}), then.then(Prefetch{1})});
    EXPECT_EQ(outcome_of(all, 3), "");
  }
}

/// Random forks, prefetches and leads in sequence. With `roomy`, their buffers hold all items.
Graph tangled(unsigned seed, int depth, bool roomy) {
  std::mt19937 random(seed);
  const auto draw = [&](unsigned limit) { return static_cast<std::int64_t>(random() % limit); };
  auto graph = first_numbers(200);
  for (; depth > 0; --depth) {
    const auto count = 2 + draw(2), buffer = 1 + draw(12);
    auto branches = graph.fork(count, roomy ? 1000 : buffer);
    for (auto& branch : branches) {
      if (draw(2) == 0) branch = branch.then(Prefetch{1 + draw(4)});
      if (draw(3) == 0) branch = branch.then(Skip{draw(10)});
      if (draw(4) == 0) branch = branch.then(Take{150});
      if (draw(2) == 0) branch = branch.then(Prefetch{1 + draw(4)});
    }
    std::shuffle(branches.begin(), branches.end(), random);
    graph = Graph::join(Zip{}, branches);
  }
  return graph;
}

TEST(Prefetch, RandomForksProceedOrFailButNeverHang) {
  int full = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    const int depth = 1 + static_cast<int>(seed % 3);
    const auto message = outcome_of(tangled(seed, depth, false), items_of(tangled(seed, depth, true)).size());
    if (message.empty()) continue;
    ++full;
    EXPECT_THAT(message, HasSubstr("items is full")) << "seed " << seed;
  }
  EXPECT_GT(full, 10);
  EXPECT_LT(full, 140);
}

/// Two branches of a fork on separate threads, after another that finds five items and never one more.
class Searching {
 public:
  Searching() {
    const Filter few = kept([asked = asked_](auto i) {
      *asked = i;
      return i < 5;
    });
    const auto branches = first_numbers(std::int64_t{1} << 60).then(few).then(Prefetch{3}).fork(2);
    const auto graph = Graph::join(Zip{}, {branches[0].then(Prefetch{9}), branches[1].then(Prefetch{9})});
    opened_ = std::make_shared<Opened>(graph);
  }
  bool gives_all() {
    return ends([opened = opened_] { opened->items(5); });
  }
  void wait_for_the_search() const {
    while (*asked_ < 1000) std::this_thread::yield();
  }
  bool is_given_up() {
    return ends([opened = std::exchange(opened_, nullptr)]() mutable { opened.reset(); });
  }

 private:
  std::shared_ptr<std::atomic<std::int64_t>> asked_ = std::make_shared<std::atomic<std::int64_t>>(0);
  std::shared_ptr<Opened> opened_;
};

TEST(Prefetch, ABranchYieldsBufferedItemsWhileAnotherMakesTheNext) {
  for (int round = 0; round < 100; ++round) ASSERT_TRUE(Searching().gives_all());
}

TEST(Prefetch, EndsWhileBothBranchesWaitForAnItem) {
  for (int round = 0; round < 20; ++round) {
    Searching searching;
    ASSERT_TRUE(searching.gives_all());
    searching.wait_for_the_search();
    ASSERT_TRUE(searching.is_given_up());
  }
}

}  // namespace
}  // namespace levada::pipeline::testing
