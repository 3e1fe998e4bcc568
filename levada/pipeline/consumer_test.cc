#include "levada/pipeline/consumer.h"

#include <gmock/gmock.h>

#include <limits>

#include "levada/pipeline/graph_testing.h"
#include "levada/pipeline/processes_testing.h"

namespace levada::pipeline {
namespace {

using testing::first_numbers;
using testing::kept;
using testing::mapped;
using testing::mapped_on_threads;
using testing::numbers_of;
using testing::Over;
using testing::rest_of;
using testing::run_pipeline;
using testing::several;
using testing::take_from;

Graph doubled(std::int64_t count) {
  return first_numbers(count).then(Dispatch{}).then(mapped([](std::int64_t i) { return 2 * i; }));
}
std::vector<Tree> single(const Graph& graph) {
  return testing::items_of(graph);
}

struct Window {
  int workers;
  std::int64_t prefetch;
};
std::string text_of(const Window& window, std::int64_t count, Over over) {
  return std::to_string(window.workers) + " workers, prefetch " + std::to_string(window.prefetch) + ", " +
         std::to_string(count) + " items, over " + (over == Over::inproc ? "inproc" : "shm");
}
ProcessOptions options_of(const Window& window) {
  return {.workers = window.workers, .worker_prefetch = window.prefetch, .main_prefetch = window.prefetch, .seed = 7};
}

/// Calls `check` for each number of workers, prefetch, number of items and engine.
template <typename Check>
void with_all_windows(const Check& check) {
  for (const int workers : {0, 1, 2, 3, 7}) {
    for (const std::int64_t prefetch : {0, 1, 10}) {
      for (const std::int64_t count : {0, 1, 2, 101}) {
        for (const Over over : {Over::inproc, Over::shm}) {
          const Window window{workers, prefetch};
          SCOPED_TRACE(text_of(window, count, over));
          check(window, count, over);
        }
      }
    }
  }
}

TEST(PipelineProcesses, KeepTheOrderOfASingleProcessIfStagesAreOneToOne) {
  with_all_windows([](const Window& window, std::int64_t count, Over over) {
    const Graph graph = doubled(count);
    run_pipeline(
        graph, options_of(window),
        [&](Consumer& consumer) {
          for (int epoch = 0; epoch < 2; ++epoch) {
            consumer.reset(epoch);
            EXPECT_EQ(rest_of(consumer), single(graph));
            EXPECT_FALSE(consumer.next());
          }
        },
        over);
  });
}

/// Graphs whose workers run maps with threads and make one item from each.
std::vector<Graph> on_threads(std::int64_t count) {
  const auto one_more = mapped_on_threads([](std::int64_t i) { return i + 1; });
  const auto some_wait = mapped_on_threads([](std::int64_t i) {
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    return 2 * i;
  });
  const Graph dispatched = first_numbers(count).then(Dispatch{});
  const auto branches = dispatched.fork(2);
  return {dispatched.then(some_wait), dispatched.then(some_wait).then(Prefetch{3}).then(one_more).then(one_more),
          Graph::join(Zip{}, {branches[0].then(some_wait), branches[1].then(one_more)}),
          Graph::join(Zip{}, {branches[1], branches[0].then(some_wait)}).then(testing::same()),
          first_numbers(count).then(Shard{}).then(some_wait).then(one_more)};
}

TEST(PipelineProcesses, KeepTheOrderOfASingleProcessIfOneToOneStagesUseThreads) {
  with_all_windows([](const Window& window, std::int64_t count, Over over) {
    for (const Graph& graph : on_threads(count)) {
      run_pipeline(
          graph, options_of(window),
          [&](Consumer& consumer) {
            for (int epoch = 0; epoch < 2; ++epoch) {
              consumer.reset(epoch);
              EXPECT_EQ(rest_of(consumer), single(graph));
            }
          },
          over);
    }
  });
}

TEST(PipelineProcesses, ReturnTheItemsOfThreadsBeforeTheSourceHasMore) {
  for (const int workers : {1, 2}) {
    std::atomic<std::int64_t> taken{0};
    const auto after_one_before = mapped([&](std::int64_t i) {
      while (taken < i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return i;
    });
    const auto same = mapped_on_threads([](std::int64_t i) { return i; });
    ProcessOptions options = options_of({workers, 0});
    options.timeout = std::chrono::seconds(20);
    const Graph graph = first_numbers(20).then(after_one_before).then(Dispatch{}).then(same).then(same);
    run_pipeline(graph, options, [&](Consumer& consumer) {
      consumer.reset(0);
      for (; taken < 20; ++taken) ASSERT_EQ(testing::number_in(*consumer.next()), taken);
      EXPECT_FALSE(consumer.next());
    });
  }
}

TEST(PipelineProcesses, KeepTheOrderOfASingleProcessIfStagesDropOrAddItems) {
  with_all_windows([](const Window& window, std::int64_t count, Over over) {
    const Graph graph = first_numbers(count)
                            .then(Dispatch{})
                            .then(kept([](std::int64_t i) { return i % 5 != 3; }))
                            .then(several(4))
                            .then(mapped([](std::int64_t i) { return i + 1; }));
    run_pipeline(
        graph, options_of(window),
        [&](Consumer& consumer) {
          consumer.reset(0);
          EXPECT_EQ(rest_of(consumer), single(graph));
        },
        over);
  });
}

TEST(PipelineProcesses, KeepTheSameOrderEveryTimeIfWorkersShuffleAndBatch) {
  const Graph graph = first_numbers(101).then(Dispatch{}).then(Shuffle{.buffer = 10}).then(Batch{.size = 3});
  const auto items = [&](int workers, std::int64_t prefetch, Over over) {
    std::vector<Tree> all;
    run_pipeline(
        graph, options_of({workers, prefetch}),
        [&](Consumer& consumer) {
          consumer.reset(0);
          all = rest_of(consumer);
        },
        over);
    return all;
  };
  for (const int workers : {1, 2, 3, 7}) {
    const auto first = items(workers, 10, Over::inproc);
    EXPECT_EQ(items(workers, 10, Over::inproc), first);
    EXPECT_EQ(items(workers, 1, Over::shm), first);
    std::int64_t sum = 0;
    for (const Tree& batch : first) {
      for (const Tree& item : batch.container().children) sum += std::get<std::int64_t>(item.leaf());
    }
    EXPECT_EQ(sum, 101 * 50);
  }
}

TEST(PipelineProcesses, KeepTheOrderOfASingleProcessOnRequestForAnyStages) {
  const Graph graph = first_numbers(101)
                          .then(Dispatch{})
                          .then(kept([](std::int64_t i) { return i % 3 != 1; }))
                          .then(several(3))
                          .then(Batch{.size = 4});
  for (const int workers : {0, 1, 2, 3}) {
    ProcessOptions options = options_of({workers, 2});
    options.ordered = true;
    run_pipeline(graph, options, [&](Consumer& consumer) {
      consumer.reset(0);
      EXPECT_EQ(rest_of(consumer), single(graph));
    });
  }
}

TEST(PipelineProcesses, DrawLikeASingleProcessIfOrderedWithoutADispatch) {
  const Graph shuffled = first_numbers(101).then(Shuffle{.buffer = 30});
  const auto divided = [](std::int64_t begin) {
    return Graph::source(range(begin, begin + 60)).then(Shard{}).then(Shuffle{.buffer = 10});
  };
  const Interleave weighted{.weights = {2, 1}};
  for (const Graph& graph : {shuffled, Graph::join(weighted, {divided(0), divided(100)}),
                             Graph::join(weighted, {first_numbers(60), first_numbers(30)})}) {
    for (const int rank : {0, 1}) {
      const auto items_with = [&](int workers) {
        ProcessOptions options = options_of({workers, 2});
        options.ordered = true;
        options.rank = rank;
        options.ranks = 2;
        std::vector<Tree> items;
        run_pipeline(graph, options, [&](Consumer& consumer) {
          consumer.reset(3);
          items = rest_of(consumer);
        });
        return items;
      };
      const auto items = items_with(0);
      EXPECT_FALSE(items.empty());
      for (const int workers : {1, 2}) EXPECT_EQ(items_with(workers), items) << workers << " workers, rank " << rank;
    }
  }
}

TEST(PipelineProcesses, DivideItemsWithoutADispatch) {
  const Graph graph = first_numbers(101).then(Shard{}).then(mapped([](std::int64_t i) { return i + 1; }));
  for (const int workers : {1, 2, 3}) {
    run_pipeline(graph, options_of({workers, 10}), [&](Consumer& consumer) {
      consumer.reset(0);
      EXPECT_EQ(rest_of(consumer), single(graph));
    });
  }
}

TEST(PipelineProcesses, DropPendingItemsOfAnEarlierEpoch) {
  for (const Over over : {Over::inproc, Over::shm}) {
    const Graph graph = doubled(1000);
    run_pipeline(
        graph, options_of({2, 3}),
        [&](Consumer& consumer) {
          for (int epoch = 0; epoch < 30; ++epoch) {
            consumer.reset(epoch);
            EXPECT_EQ(take_from(consumer, 7).size(), 7u);
          }
          consumer.reset(30);
          EXPECT_EQ(rest_of(consumer), single(graph));
        },
        over);
  }
}

TEST(PipelineProcesses, YieldAndMakeNothingWhilePaused) {
  std::atomic<std::int64_t> made{0};
  const Graph graph = first_numbers(100000).then(Dispatch{}).then(mapped([&](std::int64_t i) {
    ++made;
    return i;
  }));
  run_pipeline(graph, options_of({2, 2}), [&](Consumer& consumer) {
    consumer.reset(0);
    EXPECT_EQ(take_from(consumer, 10).size(), 10u);
    consumer.pause();
    EXPECT_TRUE(consumer.paused());
    EXPECT_FALSE(consumer.next());
    const std::int64_t before = made;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(made, before);
    consumer.resume();
    EXPECT_FALSE(consumer.paused());
    EXPECT_EQ(testing::number_in(*consumer.next()), 10);
    consumer.pause();
    consumer.reset(1);
    EXPECT_EQ(testing::number_in(*consumer.next()), 0);
  });
}

TEST(PipelineProcesses, StopPrefetchesWhilePaused) {
  std::atomic<std::int64_t> made{0};
  const auto counted = mapped([&](std::int64_t i) {
    ++made;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return i;
  });
  const std::vector<std::pair<Graph, int>> shapes = {
      {first_numbers(100000).then(counted).then(Prefetch{200}), 0},
      {first_numbers(100000).then(counted).then(Prefetch{200}).then(Dispatch{}), 1},
      {first_numbers(100000).then(Dispatch{}).then(counted).then(Prefetch{200}), 1},
  };
  for (const auto& [graph, workers] : shapes) {
    run_pipeline(graph, options_of({workers, 1}), [&](Consumer& consumer) {
      consumer.reset(0);
      EXPECT_EQ(take_from(consumer, 3).size(), 3u);
      consumer.pause();
      const std::int64_t before = made;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_LE(made, before + 1) << "except the one in progress";
      consumer.resume();
      EXPECT_EQ(take_from(consumer, 300).size(), 300u);
    });
  }
}

TEST(PipelineProcesses, ResumeAfterAnInterruptedPause) {
  struct Enough {};
  const Graph graph = first_numbers(1000).then(Dispatch{}).then(mapped([](std::int64_t i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    return i;
  }));
  const ProcessOptions options{.workers = 1, .worker_prefetch = 0, .main_prefetch = 0};
  inproc::run_ranks(testing::processes_of(graph, options), [&](std::shared_ptr<Engine> engine) {
    Process process = testing::process_of(engine, graph, options);
    if (engine->info().rank > 0) return serve(process);
    std::atomic<bool> interrupted{false};
    process.poll = [&] {
      if (interrupted.exchange(false)) throw Enough{};
    };
    Consumer consumer(process);
    consumer.reset(0);
    EXPECT_EQ(take_from(consumer, 1).size(), 1u);
    interrupted = true;
    EXPECT_THROW(consumer.pause(), Enough);
    EXPECT_TRUE(consumer.paused());
    EXPECT_FALSE(consumer.next());
    consumer.resume();
    EXPECT_EQ(testing::number_in(*consumer.next()), 1);
    EXPECT_TRUE(consumer.shutdown(std::chrono::seconds(20)));
  });
}

TEST(PipelineProcesses, DoNotCountAPauseAsWaiting) {
  const Graph graph = first_numbers(1000)
                          .then(Dispatch{})
                          .then(mapped([](std::int64_t i) {
                            std::this_thread::sleep_for(std::chrono::milliseconds(50));
                            return i;
                          }))
                          .then(FullSync{})
                          .then(Prefetch{4});
  const ProcessOptions options{
      .workers = 1, .worker_prefetch = 0, .main_prefetch = 0, .timeout = std::chrono::seconds(3)};
  run_pipeline(graph, options, [](Consumer& consumer) {
    consumer.reset(0);
    EXPECT_EQ(take_from(consumer, 2).size(), 2u);
    consumer.pause();
    std::this_thread::sleep_for(std::chrono::seconds(4));
    consumer.resume();
    EXPECT_EQ(take_from(consumer, 8).size(), 8u);
  });
}

TEST(PipelineProcesses, StopAtALimitAndResume) {
  for (const int workers : {0, 1, 2, 3}) {
    for (const bool batched : {false, true}) {
      Graph graph = doubled(50);
      if (batched) graph = graph.then(kept([](std::int64_t i) { return i % 4 == 0; }));
      run_pipeline(graph, options_of({workers, 10}), [&](Consumer& consumer) {
        consumer.reset(0);
        std::vector<Tree> items;
        for (const std::int64_t limit : {3, 0, 5, 1}) {
          consumer.limit(limit);
          const auto some = rest_of(consumer);
          EXPECT_EQ(some.size(), static_cast<std::size_t>(limit));
          items.insert(items.end(), some.begin(), some.end());
          consumer.resume();
        }
        const auto rest = rest_of(consumer);
        items.insert(items.end(), rest.begin(), rest.end());
        EXPECT_EQ(items, single(graph));
      });
    }
  }
}

/// Makes items forever and keeps none, so no item ever reaches the consumer.
std::vector<Graph> fruitless() {
  const Graph endless = first_numbers(std::numeric_limits<std::int64_t>::max());
  const auto none = kept([](auto) { return false; });
  const auto twice = endless.then(Shard{}).then(none).fork(2);
  return {endless.then(none).then(Dispatch{}).then(testing::same()),
          endless.then(none).then(Prefetch{2}).then(Dispatch{}).then(testing::same()), endless.then(Shard{}).then(none),
          endless.then(Shard{}).then(several(1)).then(Prefetch{3}),
          Graph::join(Zip{}, {twice[0].then(Prefetch{1}), twice[1].then(Prefetch{1})})};
}

TEST(PipelineProcesses, ReceiveCommandsWhileTheirStagesProduceNothing) {
  for (const Graph& graph : fruitless()) {
    run_pipeline(graph, options_of({2, 10}), [](Consumer& consumer) {
      for (int epoch = 0; epoch < 2; ++epoch) {
        consumer.reset(epoch);
        consumer.pause();
        consumer.resume();
        consumer.limit(3);
        consumer.pause();
      }
      consumer.reset(2);
    });
  }
}

TEST(PipelineProcesses, PollWhileTheConsumerWaits) {
  struct Enough {};
  for (const Graph& graph : fruitless()) {
    Process process = testing::process_of(nullptr, graph, {});
    process.poll = [] { throw Enough{}; };
    Consumer consumer(process);
    consumer.reset(0);
    EXPECT_THROW(consumer.next(), Enough);
  }
}

TEST(PipelineProcesses, EndAtAnyTime) {
  for (const Over over : {Over::inproc, Over::shm}) {
    for (const std::size_t taken : {0, 1, 10}) {
      run_pipeline(
          doubled(100000), options_of({2, 2}),
          [&](Consumer& consumer) {
            if (taken > 0) consumer.reset(0);
            EXPECT_EQ(take_from(consumer, taken).size(), taken);
          },
          over);
    }
  }
}

TEST(PipelineProcesses, RunTenThousandEmptyEpochs) {
  run_pipeline(doubled(0), options_of({2, 10}), [](Consumer& consumer) {
    for (int epoch = 0; epoch < 10000; ++epoch) {
      consumer.reset(epoch);
      ASSERT_FALSE(consumer.next());
    }
  });
}

TEST(PipelineProcesses, YieldWritableTensors) {
  const auto tensor_of = [](std::int64_t i, std::int64_t words) {
    Tensor tensor = Tensor::empty(dtypes::int64, {words});
    std::ranges::fill(tensor.mutable_as<std::int64_t>(), i);
    return Tree::dict({{"x", Tree(tensor)}, {"i", Tree(i)}});
  };
  const auto add_one = [](Item item) -> Item {
    Tree tree = std::get<Tree>(std::move(item));
    Tensor tensor = tree.tensor("x");
    for (auto& value : tensor.mutable_as<std::int64_t>()) ++value;
    return tree;
  };
  for (const Over over : {Over::inproc, Over::shm}) {
    for (const std::int64_t words : {1, 8192, 200000}) {
      const Graph graph =
          first_numbers(30)
              .then(Map{[&](const Item& item) -> Item { return tensor_of(testing::number_in(item), words); }})
              .then(Dispatch{})
              .then(Map{add_one});
      ProcessOptions options = options_of({2, 2});
      options.prefetch_bytes = 1 << 20;
      run_pipeline(
          graph, options,
          [&](Consumer& consumer) {
            consumer.reset(0);
            std::int64_t i = 0;
            std::vector<Item> all;
            while (auto item = consumer.next()) {
              Tensor tensor = std::get<Tree>(*item).tensor("x");
              EXPECT_EQ(tensor.as<std::int64_t>().back(), i + 1);
              tensor.mutable_as<std::int64_t>()[0] = i++;
              all.push_back(std::move(*item));
            }
            EXPECT_EQ(i, 30);
          },
          over);
    }
  }
}

}  // namespace
}  // namespace levada::pipeline
