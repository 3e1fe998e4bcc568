#include <gmock/gmock.h>

#include <atomic>
#include <limits>

#include "levada/pipeline/processes_testing.h"
#include "levada/pipeline/worker_runtime.h"
#include "levada/tree/codec.h"

namespace levada::pipeline {
namespace {

using ::testing::HasSubstr;
using testing::kept;
using testing::mapped;
using testing::mapped_on_threads;
using testing::rest_of;
using testing::run_pipeline;
using testing::several;
using testing::take_from;

constexpr std::int64_t num_items = 23;

Graph dealt() {
  return Graph::source(range(0, num_items)).then(Shuffle{.buffer = 5}).then(Dispatch{});
}
Graph one_to_one() {
  return dealt().then(mapped([](std::int64_t i) { return 2 * i; }));
}
Graph item_by_item() {
  return dealt().then(kept([](std::int64_t i) { return i % 4 != 1; })).then(several(4));
}
Graph with_memory() {
  return dealt().then(Shuffle{.buffer = 3}).then(Batch{.size = 2});
}
Map as_document() {
  return {[](const Item& item) -> Item {
    const auto number = std::get<std::int64_t>(std::get<Tree>(item).leaf());
    auto tokens = Tensor::empty(dtypes::int64, {1 + number % 9});
    for (std::int64_t i = 0; auto& token : tokens.mutable_as<std::int64_t>()) token = 100 * number + i++;
    return Tree(std::move(tokens));
  }};
}
Graph packed(Packing method) {
  return dealt().then(as_document()).then(Pack{.sequence = 6, .method = method, .buffer = 3});
}
Graph packed_before(Packing method) {
  const Pack pack{.sequence = 6, .method = method, .buffer = 3};
  return Graph::source(range(0, num_items)).then(as_document()).then(pack).then(Dispatch{}).then(Map{[](Item item) {
    return item;
  }});
}
Graph zipped() {
  return Graph::join(Zip{}, {dealt(), Graph::source(range(100, 200)).then(Shard{})}).then(Map{[](const Item& item) {
    return item;
  }});
}
Graph sharded() {
  const auto one_more = mapped([](std::int64_t i) { return i + 1; });
  return Graph::source(range(0, num_items)).then(one_more).then(Shard{}).then(one_more);
}
Graph on_threads() {
  const auto one_more = mapped_on_threads([](std::int64_t i) { return i + 1; });
  return dealt().then(one_more).then(one_more);
}
Graph divided_on_threads(std::int64_t items = num_items, std::atomic<int>* made = nullptr) {
  return Graph::source(range(0, items)).then(Shard{}).then(mapped_on_threads([made](std::int64_t i) {
    if (made != nullptr) ++*made;
    return i + 1;
  }));
}
Graph divided(std::int64_t items = num_items, std::atomic<int>* made = nullptr) {
  return Graph::source(range(0, items)).then(Shard{}).then(mapped([made](std::int64_t i) {
    if (made != nullptr) ++*made;
    return i + 1;
  }));
}
Graph forked() {
  const auto branches = dealt().then(kept([](std::int64_t i) { return i % 4 != 1; })).fork(2);
  return Graph::join(Zip{}, {branches[0], branches[1]});
}
Graph early_end() {
  return dealt().then(Take{.count = 4});
}

ProcessOptions with_workers(int workers, bool ordered = false) {
  return {.workers = workers, .worker_prefetch = 3, .main_prefetch = 3, .ordered = ordered, .seed = 7};
}

struct Saved {
  std::vector<Tree> all;
  std::vector<Cursor> cursors;  ///< before each item, and after the last
};

Saved saved_at_every_item(const Graph& graph, const ProcessOptions& options) {
  Saved saved;
  run_pipeline(graph, options, [&](Consumer& consumer) {
    consumer.reset(2);
    saved.cursors.push_back(consumer.save());
    while (auto item = consumer.next()) {
      saved.all.push_back(std::get<Tree>(*std::move(item)));
      saved.cursors.push_back(consumer.save());
    }
  });
  return saved;
}

void expect_resumes(const Graph& graph, const ProcessOptions& options, const Saved& saved) {
  run_pipeline(graph, options, [&](Consumer& consumer) {
    for (std::size_t i = 0; i < saved.cursors.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "after item " << i);
      consumer.reset(2, saved.cursors[i]);
      // Again, from a cursor saved by a resumed consumer.
      const auto some = take_from(consumer, 3);
      const Cursor further = consumer.save();
      const auto begin = saved.all.begin() + static_cast<std::ptrdiff_t>(i);
      EXPECT_EQ(some, std::vector<Tree>(begin, begin + static_cast<std::ptrdiff_t>(some.size())));
      consumer.reset(2, further);
      EXPECT_EQ(rest_of(consumer),
                std::vector<Tree>(begin + static_cast<std::ptrdiff_t>(some.size()), saved.all.end()));
    }
  });
}

TEST(PipelineResume, ResumesAtEveryItemWithAsManyWorkers) {
  for (const auto& graph : {one_to_one(), item_by_item(), with_memory(), zipped(), sharded(), early_end(), on_threads(),
                            divided_on_threads()}) {
    for (const int workers : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << graph.stages().back().name << " with " << workers << " workers");
      const auto options = with_workers(workers);
      expect_resumes(graph, options, saved_at_every_item(graph, options));
    }
  }
}

TEST(PipelineResume, ResumesAtEveryRowOfPackedDocuments) {
  for (const auto method : {Packing::cut, Packing::best_fit}) {
    for (const int workers : {0, 1, 3}) {
      for (const bool ordered : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "best fit: " << (method == Packing::best_fit) << ", " << workers
                                          << " workers, ordered: " << ordered);
        const auto options = with_workers(workers, ordered);
        expect_resumes(packed(method), options, saved_at_every_item(packed(method), options));
      }
    }
    const auto before = packed_before(method);
    const Saved saved = saved_at_every_item(before, with_workers(3));
    for (const int workers : {1, 2}) expect_resumes(before, with_workers(workers), saved);
  }
}

TEST(PipelineResume, ResumesOneToOneStagesWithAnyNumberOfWorkers) {
  for (const auto& graph : {one_to_one(), sharded(), divided(), on_threads(), divided_on_threads()}) {
    const Saved saved = saved_at_every_item(graph, with_workers(3));
    EXPECT_EQ(saved.all.size(), static_cast<std::size_t>(num_items));
    for (const int workers : {1, 2, 5}) {
      SCOPED_TRACE(::testing::Message() << graph.stages().back().name << " with " << workers << " workers");
      expect_resumes(graph, with_workers(workers), saved);
    }
  }
}

TEST(PipelineResume, RemakesNoItemsIfTheSourceCanSeek) {
  constexpr std::int64_t many = 100'000, at = 99'000;
  for (const auto& graph_of : {divided, divided_on_threads}) {
    std::atomic<int> made{0};
    Cursor cursor;
    run_pipeline(graph_of(many, nullptr), with_workers(3), [&](Consumer& consumer) {
      consumer.reset(0);
      EXPECT_EQ(take_from(consumer, at).size(), static_cast<std::size_t>(at));
      cursor = consumer.save();
    });
    run_pipeline(graph_of(many, &made), with_workers(2), [&](Consumer& consumer) {
      consumer.reset(0, cursor);
      const auto rest = rest_of(consumer);
      ASSERT_EQ(rest.size(), static_cast<std::size_t>(many - at));
      EXPECT_EQ(rest.front(), Tree(at + 1));
    });
    EXPECT_EQ(made, many - at);
  }
}

TEST(PipelineResume, BeginsAfterAnyItem) {
  for (const auto& graph : {one_to_one(), sharded(), divided(), on_threads(), divided_on_threads()}) {
    for (const int workers : {0, 1, 3}) {
      const auto options = with_workers(workers);
      const Saved saved = saved_at_every_item(graph, options);
      run_pipeline(graph, options, [&](Consumer& consumer) {
        for (std::int64_t items = 0; items <= num_items; ++items) {
          SCOPED_TRACE(::testing::Message() << "behind " << items << " with " << workers << " workers");
          consumer.reset_after(2, items);
          EXPECT_EQ(rest_of(consumer), std::vector<Tree>(saved.all.begin() + items, saved.all.end()));
        }
      });
    }
  }
}

TEST(PipelineResume, TheDispatchingProcessSkipsItemsThatNoWorkerNeeds) {
  std::atomic<int> made{0};
  const auto same = mapped([](std::int64_t i) { return i; });
  const auto counted = mapped([&](std::int64_t i) { return ++made, i; });
  const auto graph = Graph::source(range(0, 1000)).then(counted).then(Prefetch{3}).then(Dispatch{}).then(same);
  for (const int workers : {1, 3}) {
    made = 0;
    run_pipeline(graph, with_workers(workers), [&](Consumer& consumer) {
      consumer.reset_after(0, 900);
      const auto rest = rest_of(consumer);
      ASSERT_EQ(rest.size(), 100u);
      EXPECT_EQ(rest.front(), Tree(900));
    });
    EXPECT_EQ(made, 100);
  }
}

void expect_refused(Consumer& consumer, const std::function<void()>& begin, const char* why) {
  try {
    begin();
    const auto items = rest_of(consumer);
    ADD_FAILURE() << "the state was accepted and yielded " << items.size() << " items";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr(why));
  }
}

TEST(PipelineResume, RejectsAStateAfterTheEnd) {
  const auto dealt_of = [](std::int64_t items) {
    return Graph::source(range(0, items)).then(Dispatch{}).then(mapped([](std::int64_t i) { return i; }));
  };
  const auto divided_of = [](std::int64_t items) { return divided(items); };
  for (const std::function<Graph(std::int64_t)>& graph_of :
       std::vector<std::function<Graph(std::int64_t)>>{dealt_of, divided_of}) {
    const Cursor cursor = saved_at_every_item(graph_of(num_items), with_workers(2)).cursors.back();
    for (const int workers : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << workers << " workers");
      run_pipeline(graph_of(10), with_workers(workers), [&](Consumer& consumer) {
        expect_refused(
            consumer, [&] { consumer.reset(2, cursor); }, "state is of");
        expect_refused(
            consumer, [&] { consumer.reset_after(2, 11); }, "state is of");
        consumer.reset(0);
        EXPECT_EQ(rest_of(consumer).size(), 10u);
      });
    }
    run_pipeline(graph_of(10), with_workers(0), [&](Consumer& consumer) {
      expect_refused(
          consumer, [&] { consumer.reset_after(2, 11); }, "state is of");
    });
  }
}

/// Returns copies of the tree with each integer, in turn, replaced by `number`.
std::vector<Tree> with_each_integer(const Tree& tree, std::int64_t number) {
  std::vector<Tree> changed;
  if (tree.is_leaf()) {
    if (std::holds_alternative<std::int64_t>(tree.leaf())) changed.push_back(Tree(number));
    return changed;
  }
  for (std::size_t i = 0; i < tree.container().children.size(); ++i) {
    for (Tree& child : with_each_integer(tree.container().children[i], number)) {
      Container container = tree.container();
      container.children[i] = std::move(child);
      changed.emplace_back(std::move(container));
    }
  }
  return changed;
}

TEST(PipelineResume, RejectsImpossibleCounts) {
  for (const auto& graph : {one_to_one(), with_memory(), divided()}) {
    const Cursor cursor = saved_at_every_item(graph, with_workers(2)).cursors[5];
    run_pipeline(graph, with_workers(2), [&](Consumer& consumer) {
      for (const std::int64_t number : {std::numeric_limits<std::int64_t>::max(), std::int64_t{1} << 61,
                                        std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
        for (const Tree& changed : with_each_integer(cursor, number)) {
          try {
            consumer.reset(2, changed);
            take_from(consumer, 100);
          } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::invalid_argument) << error.what();
          }
        }
      }
      consumer.reset(2, cursor);
      EXPECT_FALSE(rest_of(consumer).empty());
    });
  }
}

TEST(PipelineResume, AcceptsALimitOfAnySize) {
  run_pipeline(one_to_one(), with_workers(2), [](Consumer& consumer) {
    consumer.reset(0);
    EXPECT_EQ(take_from(consumer, 1).size(), 1u);
    consumer.limit(std::numeric_limits<std::int64_t>::max());
    EXPECT_EQ(rest_of(consumer).size(), static_cast<std::size_t>(num_items) - 1);
  });
}

TEST(PipelineResume, SavingTakesASmallFractionOfTheTime) {
  using std::chrono::microseconds;
  using std::chrono::milliseconds;
  const auto begin = Clock::now();
  SnapshotPace pace;
  EXPECT_TRUE(pace.is_due(0, begin));
  pace.saved(20, begin, begin + microseconds(1));
  EXPECT_FALSE(pace.is_due(147, begin + microseconds(100)));
  EXPECT_TRUE(pace.is_due(148, begin + microseconds(110)));
  EXPECT_TRUE(pace.is_due(21, begin + milliseconds(2)));
  EXPECT_FALSE(pace.is_every(1'000'000));
  pace.saved(20, begin, begin + milliseconds(10));
  EXPECT_FALSE(pace.is_due(1'000'000, begin + milliseconds(1000)));
  EXPECT_TRUE(pace.is_due(21, begin + milliseconds(1010)));
}

TEST(PipelineResume, SavesAtTheRequestedInterval) {
  SnapshotPace pace(50, 20);
  EXPECT_FALSE(pace.is_due(69, Clock::now() + std::chrono::hours(1)));
  EXPECT_TRUE(pace.is_due(70, Clock::now()) && pace.is_every(70));
  pace.saved(70, Clock::now(), Clock::now());
  EXPECT_FALSE(pace.is_every(119));
  EXPECT_TRUE(pace.is_every(120));
}

TEST(PipelineResume, RemakesNoMoreItemsThanTheSaveInterval) {
  auto options = with_workers(2);
  options.snapshot_every = 100;
  const Graph graph = Graph::source(range(0, 30000)).then(Dispatch{}).then(kept([](auto i) { return i % 3 == 0; }));
  run_pipeline(graph, options, [&](Consumer& consumer) {
    consumer.reset(0);
    for (std::int64_t items = 600; items <= 6000; items += 600) {
      EXPECT_EQ(take_from(consumer, 600).size(), 600u);
      const Cursor cursor = consumer.save();
      const auto number = std::get<std::int64_t>(cursor.at("stages[0].at.number").leaf());
      // 100 in the dispatching process, and 100 in each worker, which takes three items for each.
      EXPECT_GE(number, 3 * items - 100 - 2 * 300);
    }
  });
}

TEST(PipelineResume, ResumesAtAnyItemForAnySaveInterval) {
  for (const std::int64_t every : {1, 3, 1000}) {
    auto options = with_workers(2);
    options.snapshot_every = every;
    for (const Graph& graph : {one_to_one(), with_memory()}) {
      expect_resumes(graph, options, saved_at_every_item(graph, options));
    }
  }
}

TEST(PipelineResume, AStateOfAMillionBufferedItemsIsAtMostFiveMegabytes) {
  const Graph graph = Graph::source(range(0, 3'000'000)).then(Shuffle{.buffer = 1'000'000}).then(Dispatch{});
  run_pipeline(graph, with_workers(1), [&](Consumer& consumer) {
    consumer.reset(0);
    EXPECT_EQ(take_from(consumer, 1000).size(), 1000u);
    EXPECT_LT(encode_tree(consumer.save()).size(), 5'000'000u);
  });
}

TEST(PipelineResume, ResumesIfStagesRunInTheConsumer) {
  const auto options = with_workers(2, true);
  expect_resumes(with_memory(), options, saved_at_every_item(with_memory(), options));
  for (const Graph& graph : {forked(), with_memory().then(Prefetch{.depth = 2}), forked().then(Prefetch{.depth = 2})}) {
    expect_resumes(graph, options, saved_at_every_item(graph, options));
  }
}

TEST(PipelineResume, RejectsAnotherNumberOfWorkersUnlessOneToOne) {
  const Saved saved = saved_at_every_item(with_memory(), with_workers(3));
  run_pipeline(with_memory(), with_workers(2), [&](Consumer& consumer) {
    try {
      consumer.reset(2, saved.cursors[5]);
      ADD_FAILURE() << "the cursor was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("with 3 workers"));
    }
    consumer.reset(0);
    EXPECT_FALSE(rest_of(consumer).empty());
  });
}

TEST(PipelineResume, RejectsForeignCursors) {
  const Saved saved = saved_at_every_item(one_to_one(), with_workers(2));
  run_pipeline(one_to_one(), with_workers(2), [&](Consumer& consumer) {
    for (const Tree& bad : {Tree(3), Tree::dict({}), Tree::dict({{"epoch", 2}, {"stages", Tree::dict({})}})}) {
      EXPECT_THROW(consumer.reset(2, bad), InvalidArgument);
    }
    EXPECT_THROW(consumer.reset(3, saved.cursors[5]), InvalidArgument);
    consumer.reset(2, saved.cursors[5]);
    EXPECT_EQ(take_from(consumer, 1).front(), saved.all[5]);
  });
}

TEST(PipelineResume, StateSizeIsIndependentOfThePosition) {
  const Graph graph =
      Graph::source(range(0, 200000)).then(Dispatch{}).then(kept([](std::int64_t i) { return i % 1000 == 0; }));
  run_pipeline(graph, with_workers(2), [&](Consumer& consumer) {
    consumer.reset(0);
    EXPECT_EQ(take_from(consumer, 190).size(), 190u);
    const Cursor cursor = consumer.save();
    EXPECT_LT(encode_tree(cursor).size(), 8192u);
    const auto rest = rest_of(consumer);
    EXPECT_EQ(rest.size(), 10u);
    consumer.reset(0, cursor);
    EXPECT_EQ(rest_of(consumer), rest);
  });
}

}  // namespace
}  // namespace levada::pipeline
