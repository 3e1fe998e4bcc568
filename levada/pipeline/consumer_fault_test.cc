#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "levada/pipeline/processes_testing.h"

namespace levada::pipeline {
namespace {

using ::testing::HasSubstr;
using testing::mapped;
using testing::Over;
using testing::process_of;
using testing::processes_of;
using testing::rest_of;
using testing::run_pipeline;
using testing::take_from;

Map failing_at(std::int64_t item) {
  return mapped([item](std::int64_t i) {
    if (i == item) throw std::runtime_error("no more");
    return i;
  });
}
/// Yields an item that cannot be converted to a Tree, and so cannot be packed.
Map unpackable_at(std::int64_t item) {
  static const LanguageObject::Language language{[](void*) noexcept {}, [](void*) noexcept {}};
  return {[item](Item given) -> Item {
    if (testing::number_in(given) == item) return LanguageObject(nullptr, language);
    return given;
  }};
}
Map on_threads(Map map) {
  map.threads = 2;
  return map;
}
Graph pipeline(Map before, Map after, std::int64_t count = 10) {
  return Graph::source(range(0, count))
      .then(std::move(before), "before")
      .then(Dispatch{})
      .then(std::move(after), "after");
}

ProcessOptions hasty_workers(int workers) {
  return {.workers = workers, .worker_prefetch = 2, .main_prefetch = 2, .timeout = std::chrono::seconds(60)};
}

/// Expects items up to `item`, then the failure, then nothing; and the same in another epoch.
Failure failure_at(Consumer& consumer, std::int64_t item) {
  Failure failure;
  for (int epoch = 0; epoch < 2; ++epoch) {
    consumer.reset(epoch);
    EXPECT_EQ(take_from(consumer, static_cast<std::size_t>(item)).size(), static_cast<std::size_t>(item));
    failure = testing::failure_of([&] { consumer.next(); });
  }
  return failure;
}

TEST(PipelineFaults, AFailureOfAnyProcessTakesThePlaceOfItsItem) {
  for (const int workers : {1, 2, 3}) {
    for (std::int64_t item = 0; item < 10; ++item) {
      SCOPED_TRACE(::testing::Message() << workers << " workers, item " << item);
      run_pipeline(pipeline(failing_at(item), failing_at(-1)), hasty_workers(workers), [&](Consumer& consumer) {
        const Failure failure = failure_at(consumer, item);
        EXPECT_EQ(failure.stage, "before");
        EXPECT_EQ(failure.item, item);
        EXPECT_EQ(failure.process, "process 1");
        EXPECT_EQ(failure.message, "no more");
      });
      run_pipeline(pipeline(failing_at(-1), failing_at(item)), hasty_workers(workers), [&](Consumer& consumer) {
        const Failure failure = failure_at(consumer, item);
        EXPECT_EQ(failure.stage, "after");
        EXPECT_EQ(failure.item, item / workers);
        EXPECT_EQ(failure.process, "process " + std::to_string(2 + item % workers));
      });
    }
  }
}

TEST(PipelineFaults, AFailureOnAThreadTakesThePlaceOfItsItem) {
  const auto fails_at = [](const Graph& graph, int workers, std::int64_t item, const char* stage) {
    SCOPED_TRACE(::testing::Message() << stage << ", " << workers << " workers, item " << item);
    run_pipeline(graph, hasty_workers(workers), [&](Consumer& consumer) {
      const Failure failure = failure_at(consumer, item);
      EXPECT_EQ(failure.stage, stage);
    });
  };
  for (const int workers : {1, 2, 3}) {
    for (std::int64_t item = 0; item < 10; ++item) {
      const Map fine = on_threads(failing_at(-1));
      fails_at(pipeline(failing_at(item), fine), workers, item, "before");
      fails_at(pipeline(unpackable_at(item), fine), workers, item, "dispatch");
      fails_at(pipeline(failing_at(-1), on_threads(failing_at(item))), workers, item, "after");
      fails_at(pipeline(failing_at(-1), on_threads(unpackable_at(item))), workers, item, "after");
      fails_at(pipeline(failing_at(-1), failing_at(item)).then(fine).then(fine), workers, item, "after");
      fails_at(pipeline(failing_at(-1), fine).then(fine).then(on_threads(unpackable_at(item)), "last"), workers, item,
               "last");
    }
  }
}

TEST(PipelineFaults, ItemsBeforeAFailureMatchAnUndisturbedRun) {
  const auto items_of = [](const Graph& graph, int workers) {
    std::vector<Tree> items;
    run_pipeline(graph, hasty_workers(workers), [&](Consumer& consumer) {
      consumer.reset(0);
      try {
        while (auto item = consumer.next()) items.push_back(std::get<Tree>(*std::move(item)));
      } catch (const StageFailed&) {
        EXPECT_EQ(consumer.next(), std::nullopt);
      }
    });
    return items;
  };
  Map skipping = on_threads(failing_at(4));
  skipping.on_error = OnError::skip;
  const auto some = testing::kept([](std::int64_t i) { return i % 4 != 1; });
  for (const int workers : {1, 2, 3}) {
    const auto graph_of = [&](std::int64_t before, std::int64_t in_worker) {
      return pipeline(failing_at(before), failing_at(in_worker), 40).then(some).then(skipping).then(some);
    };
    const auto undisturbed = items_of(graph_of(-1, -1), workers);
    for (std::int64_t item = 0; item < 40; ++item) {
      for (const Graph& graph : {graph_of(item, -1), graph_of(-1, item)}) {
        SCOPED_TRACE(::testing::Message() << workers << " workers, item " << item);
        const auto items = items_of(graph, workers);
        ASSERT_LT(items.size(), undisturbed.size() + 1);
        EXPECT_TRUE(std::equal(items.begin(), items.end(), undisturbed.begin()));
      }
    }
  }
}

TEST(PipelineFaults, OnlyAFailureInTheConsumersStagesLosesTheCursor) {
  const auto graph = Graph::source(range(0, 20)).then(Dispatch{}).then(failing_at(7));
  for (const int workers : {0, 1, 2}) {
    SCOPED_TRACE(workers);
    const bool fails_here = workers == 0;
    run_pipeline(graph, hasty_workers(workers), [&](Consumer& consumer) {
      consumer.reset(0);
      take_from(consumer, 7);
      EXPECT_THROW(consumer.next(), StageFailed);
      EXPECT_EQ(consumer.lost_place(), fails_here);
      EXPECT_EQ(consumer.next(), std::nullopt);
      EXPECT_FALSE(consumer.ended()) << "a failed epoch has not ended";
      EXPECT_EQ(consumer.lost_place(), fails_here) << "the end does not restore it";
      if (fails_here) EXPECT_THROW(consumer.save(), InvalidArgument);
      else EXPECT_NO_THROW(consumer.save());
      consumer.reset(0);
      EXPECT_FALSE(consumer.lost_place());
      EXPECT_EQ(take_from(consumer, 3).size(), 3u);
      EXPECT_NO_THROW(consumer.save());
    });
  }
}

TEST(PipelineFaults, AnItemThatCannotBeSentFailsInItsPlace) {
  for (const int workers : {1, 2, 3}) {
    for (std::int64_t item = 0; item < 10; ++item) {
      SCOPED_TRACE(::testing::Message() << workers << " workers, item " << item);
      run_pipeline(pipeline(unpackable_at(item), failing_at(-1)), hasty_workers(workers), [&](Consumer& consumer) {
        const Failure failure = failure_at(consumer, item);
        EXPECT_EQ(failure.stage, "dispatch");
        EXPECT_EQ(failure.item, item);
        EXPECT_EQ(failure.process, "process 1");
      });
      run_pipeline(pipeline(failing_at(-1), unpackable_at(item)), hasty_workers(workers), [&](Consumer& consumer) {
        const Failure failure = failure_at(consumer, item);
        EXPECT_EQ(failure.stage, "after");
        EXPECT_EQ(failure.item, item / workers);
        EXPECT_EQ(failure.process, "process " + std::to_string(2 + item % workers));
      });
    }
  }
}

TEST(PipelineFaults, AFailureToBeginAnEpochComesFirst) {
  for (const int rank : {0, 1, 3}) {
    const Graph graph = pipeline(failing_at(-1), failing_at(-1));
    const auto options = hasty_workers(2);
    inproc::run_ranks(processes_of(graph, options), [&](std::shared_ptr<Engine> engine) {
      Process process = process_of(engine, graph, options);
      if (engine->info().rank == rank) {
        process.begin_epoch = [](const OpenContext& open_context) {
          if (open_context.epoch == 0) throw std::runtime_error("no seed");
        };
      }
      if (engine->info().rank != 0) return serve(process);
      Consumer consumer(process);
      try {
        consumer.reset(0);
        rest_of(consumer);
        ADD_FAILURE() << "nothing failed";
      } catch (const std::exception& error) {
        EXPECT_THAT(error.what(), HasSubstr("no seed"));
        if (rank != 0) {
          EXPECT_THAT(error.what(), HasSubstr("process " + std::to_string(rank)));
        }
      }
      consumer.reset(1);
      EXPECT_EQ(rest_of(consumer).size(), 10u);
    });
  }
}

TEST(PipelineFaults, SkippedItemsAreCounted) {
  Map after = failing_at(4);
  after.on_error = OnError::skip;
  run_pipeline(pipeline(failing_at(-1), after), hasty_workers(2), [](Consumer& consumer) {
    consumer.reset(0);
    EXPECT_EQ(rest_of(consumer).size(), 9u);
    const auto stats = consumer.stats();
    EXPECT_EQ(stats.stages[3].skipped, 1);
    EXPECT_EQ(stats.stages[0].items, 10);
    EXPECT_EQ(stats.stages[3].items, 9);
    EXPECT_GT(stats.messages, 0);
    EXPECT_GT(stats.bytes, 0u);
  });
}

TEST(PipelineFaults, AKilledProcessIsNamedSoon) {
  for (const int killed : {1, 2, 3}) {
    const auto dies = [killed](int rank) {
      return mapped([killed, rank](std::int64_t i) {
        if (rank == killed && i >= 20) ::raise(SIGKILL);
        return i;
      });
    };
    const std::string failures = shm::test::run_forked(4, [&](std::shared_ptr<Engine> engine) {
      const int rank = engine->info().rank;
      const Graph graph = pipeline(dies(rank == 1 ? 1 : 0), dies(rank == 1 ? 0 : rank), 1000000);
      const Process process = process_of(engine, graph, hasty_workers(2));
      if (rank != 0) return serve(process);
      Consumer consumer(process);
      consumer.reset(0);
      const auto begun = Clock::now();
      try {
        rest_of(consumer);
      } catch (const PeerLost& lost) {
        const std::string message = lost.what();
        if (lost.rank() == killed && message.find("process " + std::to_string(killed)) != std::string::npos &&
            Clock::now() - begun < std::chrono::seconds(5)) {
          return;
        }
        throw;
      }
      throw EngineError("no process was lost");
    });
    EXPECT_THAT(failures, HasSubstr("signal 9"));
    EXPECT_THAT(failures, ::testing::Not(HasSubstr("rank 0")));
  }
}

TEST(PipelineFaults, AProcessThatThrowsIsNamed) {
  const Graph graph = pipeline(failing_at(-1), failing_at(-1), 1000000);
  const auto options = hasty_workers(2);
  std::string message;
  std::atomic<bool> is_consuming{false};
  try {
    inproc::run_ranks(processes_of(graph, options), [&](std::shared_ptr<Engine> engine) {
      Process process = process_of(engine, graph, options);
      if (engine->info().rank == 2) {
        process.poll = [&] {
          if (is_consuming) throw InvalidArgument("no memory left");
        };
      }
      if (engine->info().rank != 0) return serve(process);
      Consumer consumer(process);
      try {
        consumer.reset(0);
        is_consuming = true;
        rest_of(consumer);
      } catch (const Error& error) {
        message = error.what();
      }
    });
  } catch (const InvalidArgument&) {
  }
  EXPECT_THAT(message, HasSubstr("process 2: no memory left"));
}

TEST(PipelineFaults, ATimeoutNamesTheProcessAndItsStage) {
  std::atomic<bool> is_reported{false};
  const Graph graph = pipeline(failing_at(-1), mapped([&](std::int64_t i) {
                                 while (i == 5 && !is_reported)
                                   std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                 return i;
                               }));
  ProcessOptions options = hasty_workers(2);
  options.timeout = std::chrono::seconds(4);
  options.remind_after = std::chrono::milliseconds(100);
  ::testing::internal::CaptureStderr();
  run_pipeline(graph, options, [&](Consumer& consumer) {
    consumer.reset(0);
    try {
      rest_of(consumer);
      ADD_FAILURE() << "it did not wait";
    } catch (const Timeout& error) {
      EXPECT_THAT(error.what(), HasSubstr("no item arrived from process 3"));
      EXPECT_THAT(error.what(), HasSubstr("after"));
    }
    is_reported = true;
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::ContainsRegex("levada: no item arrived from process 3.*rank 0 waited .*; still waiting\n"));
}

TEST(PipelineFaults, AConsumerThatLeavesEndsTheOthers) {
  const Graph graph = pipeline(failing_at(-1), failing_at(-1), 1000000);
  const auto options = hasty_workers(2);
  inproc::run_ranks(processes_of(graph, options), [&](std::shared_ptr<Engine> engine) {
    if (engine->info().rank != 0) serve(process_of(std::move(engine), graph, options));
  });
}

TEST(PipelineFaults, AConsumerThatLeavesSilentlyEndsWorkersThatNeverWait) {
  const auto limit = Deadline::after(std::chrono::seconds(20));
  std::atomic<bool> has_continued{false};
  const Graph graph = Graph::source(range(0, std::int64_t{1} << 60)).then(testing::kept([&](std::int64_t i) {
    if (!limit.expired()) return i == 0;
    has_continued = true;
    throw std::runtime_error("no process needs it");
  }));
  const auto body = [&](const std::shared_ptr<Engine>& engine) {
    const Process process = process_of(engine, graph, hasty_workers(1));
    if (engine->info().rank != 0) return serve(process);
    std::vector<Block> held;
    Consumer consumer(process);
    consumer.reset(0);
    EXPECT_TRUE(consumer.next());
    while (auto block = engine->try_allocate(4096)) held.push_back(std::move(*block));  // leaves none for the command
  };
  inproc::run_ranks(2, body, {.memory_bytes = std::size_t{16} << 20});
  EXPECT_FALSE(has_continued);
}

TEST(PipelineMemory, IsConstantOverManyEpochs) {
  const Graph graph = Graph::source(range(0, 40))
                          .then(Map{[](const Item&) -> Item { return Tree(Tensor::zeros(dtypes::int64, {16384})); }})
                          .then(Dispatch{})
                          .then(Map{[](Item item) { return item; }});
  ProcessOptions options = hasty_workers(2);
  options.prefetch_bytes = 1 << 20;
  auto engines = inproc::make_group(processes_of(graph, options));
  std::vector<std::thread> others;
  for (std::size_t rank = 1; rank < engines.size(); ++rank) {
    others.emplace_back([&, rank] { serve(process_of(engines[rank], graph, options)); });
  }
  std::uint64_t most = 0;
  {
    Consumer consumer(process_of(engines[0], graph, options));
    for (int epoch = 0; epoch < 200; ++epoch) {
      consumer.reset(epoch);
      take_from(consumer, epoch % 41);
      std::uint64_t in_use = 0;
      for (const auto& engine : engines) in_use += engine->memory_in_use();
      most = std::max(most, in_use);
    }
    EXPECT_TRUE(consumer.shutdown(std::chrono::seconds(20)));
  }
  for (auto& thread : others) thread.join();
  // Four edges, each with its limit, a message in transit and one being read.
  EXPECT_LT(most, 4 * (options.prefetch_bytes + (std::size_t{4} << 20)));
}

}  // namespace
}  // namespace levada::pipeline
