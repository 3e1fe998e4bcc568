#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <set>
#include <thread>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/shm/forked_ranks_testing.h"
#include "levada/pipeline/graph_testing.h"
#include "levada/pipeline/open_graph_testing.h"
#include "levada/pipeline/processes_testing.h"
#include "levada/pipeline/ranks_testing.h"

namespace levada::pipeline {
namespace {

using ::testing::ElementsAre;
using testing::failure_of;
using testing::first_numbers;
using ::testing::HasSubstr;
using testing::on_threads_and_processes;
using testing::require;

/// A graph opened on one of several ranks.
class OnRank {
 public:
  OnRank(const Graph& graph, const std::shared_ptr<Engine>& engine, std::function<void()> poll = {})
      : counts_(graph.stages().size()),
        iterator_(open(graph, graph.end(),
                       RuntimeOptions{.traits = traits_,
                                      .open_context = make_open_context(
                                          7, 0, {.rank = engine->info().rank, .ranks = engine->info().size}),
                                      .process = "the consumer",
                                      .counts = counts_,
                                      .all_ranks = engine,
                                      .poll = std::move(poll)})) {}

  Iterator& iterator() { return *iterator_; }
  std::vector<std::int64_t> numbers(std::size_t most = 1 << 20) {
    std::vector<std::int64_t> numbers;
    while (numbers.size() < most) {
      const auto item = iterator_->next();
      if (!item) break;
      numbers.push_back(std::get<std::int64_t>(std::get<Tree>(*item).leaf()));
    }
    return numbers;
  }

 private:
  TreeItemTraits traits_;
  Counts counts_;
  IteratorPtr iterator_;
};

/// Throws at item `at` of rank `rank`.
Map failing(int rank, std::int64_t at, const std::shared_ptr<Engine>& engine) {
  return {[=, mine = engine->info().rank](Item item) {
    if (mine == rank && std::get<Tree>(item) == Tree(at)) throw SourceError("cannot decode");
    return item;
  }};
}

TEST(FullSync, StopsAllRanksWithTheShortestOne) {
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    OnRank rank(first_numbers(23).then(Shard{}).then(FullSync{}), engine);
    require(rank.numbers().size() == 11, "each part of 23 items must yield 11");
    require(!rank.iterator().next(), "next() must keep returning nothing");
  });
}

TEST(FullSync, IsTheIdentityForASingleRank) {
  on_threads_and_processes(1, [](const std::shared_ptr<Engine>& engine) {
    OnRank rank(first_numbers(5).then(FullSync{}), engine);
    require(rank.numbers() == std::vector<std::int64_t>{0, 1, 2, 3, 4}, "items are missing");
  });
}

TEST(FullSync, FailsAllRanksIfOneFails) {
  on_threads_and_processes(3, [](const std::shared_ptr<Engine>& engine) {
    OnRank rank(first_numbers(engine->info().rank == 2 ? 5 : 50).then(failing(1, 3, engine)).then(FullSync{}), engine);
    const auto before = rank.numbers(3);
    require(before.size() == 3, "items before the failure are missing");
    const Failure failure = failure_of([&] { rank.iterator().next(); });
    require(failure.stage == "map" && failure.item == 3, describe(failure));
    require(failure.kind == ErrorKind::source && failure.message == "cannot decode", describe(failure));
    const bool own = engine->info().rank == 1;
    require(failure.process == (own ? "the consumer" : "rank 1, the consumer"), failure.process);
    require(!rank.iterator().next(), "a failure must end the iterator");
  });
}

TEST(FullSync, FailsAllRanksIfOneCannotOpen) {
  class Broken final : public ItemSource {
   public:
    std::string describe() const override { return "broken"; }
    bool divides() const override { return false; }
    IteratorPtr open(const OpenContext&, Partition) const override { throw SourceError("no such file"); }
  };
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    const Graph whole = first_numbers(5), broken = Graph::source(std::make_shared<Broken>());
    OnRank rank((engine->info().rank == 1 ? broken : whole).then(FullSync{}), engine);
    const Failure failure = failure_of([&] { rank.iterator().next(); });
    require(failure.stage == "source" && failure.message == "no such file", describe(failure));
  });
}

TEST(FullSync, FailsIfOneRankFailsAndAnotherEnds) {
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    OnRank rank(first_numbers(engine->info().rank == 0 ? 3 : 9).then(failing(1, 3, engine)).then(FullSync{}), engine);
    require(rank.numbers(3).size() == 3, "items before the failure are missing");
    require(failure_of([&] { rank.iterator().next(); }).message == "cannot decode", "another failure");
  });
}

TEST(FullSync, ResumesAtItsCursor) {
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    const Graph graph =
        first_numbers(13).then(Shuffle{.buffer = 4}).then(Shard{}).then(FullSync{}).then(Batch{1}).then(Unbatch{});
    const auto all = OnRank(graph, engine).numbers();
    require(all.size() == 6, "each rank must yield six items");
    for (std::size_t given = 0; given <= all.size() + 1; ++given) {
      OnRank first(graph, engine);
      auto numbers = first.numbers(given);
      OnRank second(graph, engine);
      second.iterator().restore(first.iterator().save());
      const auto more = second.numbers();
      numbers.insert(numbers.end(), more.begin(), more.end());
      require(numbers == all, fmt::format("after {}: {} for {}", given, numbers, all));
    }
  });
}

TEST(FullSync, RestartsInEachPassOfARepeat) {
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    OnRank rank(first_numbers(5).then(Shard{}).then(FullSync{}).then(Repeat{3}), engine);
    require(rank.numbers().size() == 6, "each of three passes must yield two items");
  });
}

TEST(FullSync, ReportsItemsBeforeTheyAreRequested) {
  struct Enough {};
  std::barrier meet(2);
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    bool impatient = false;
    OnRank rank(first_numbers(100'000).then(FullSync{}), engine, [&] {
      if (impatient) throw Enough{};
    });
    rank.numbers(3);
    meet.arrive_and_wait();
    if (engine->info().rank == 0) {
      // Rank 1 still works on its third item, but has already reported its fourth. It has not reported all others.
      EXPECT_THAT(rank.numbers(1), ElementsAre(3));
      impatient = true;
      EXPECT_THROW(rank.numbers(), Enough);
    }
    meet.arrive_and_wait();
  });
}

TEST(FullSync, ResumesFromCursorsAtDifferentPositions) {
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    const int number = engine->info().rank;
    const Graph graph = first_numbers(40 + number).then(FullSync{});
    OnRank first(graph, engine);
    Cursor cursor = first.iterator().save();
    first.numbers(5);
    if (number == 1) cursor = first.iterator().save();
    agree(*engine, {}, Deadline::after(std::chrono::seconds(20)), "the test");
    OnRank second(graph, engine);
    second.iterator().restore(cursor);
    require(second.numbers().back() == 39, "ranks end at other items");
  });
}

/// `ahead`: a graph whose threads make items ahead of a stage at which ranks stop together.
void expect_prompt_release(const Graph& ahead) {
  const auto engines = inproc::make_group(2);
  OnRank slow(first_numbers(9).then(FullSync{}), engines[0]);
  std::optional<OnRank> other(std::in_place, ahead, engines[1]);
  std::thread taking([&] { slow.numbers(1); });
  EXPECT_TRUE(other->iterator().next());
  taking.join();
  // Its thread begins to wait for the other rank's report, and would do so for minutes.
  while (engines[0]->status(1).step < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto begin = Clock::now();
  other.reset();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60));
}

TEST(FullSync, ReleasesAPrefetchThatIsNoLongerNeeded) {
  const Graph synced = first_numbers(9).then(FullSync{});
  expect_prompt_release(synced.then(Prefetch{8}));
  const auto branches = synced.fork(2);
  expect_prompt_release(Graph::join(Zip{}, {branches[0].then(Prefetch{8}), branches[1].then(Prefetch{8})}));
}

/// Runs two ranks of a job, each with a dispatching process and two workers. `consume` is called with the rank.
void run_job(const std::function<Graph(int rank)>& graph_of,
             const std::function<void(Consumer& consumer, int rank)>& consume) {
  const auto job = inproc::make_group(2);
  const auto run_rank = [&](int rank) {
    const Graph graph = graph_of(rank);
    const ProcessOptions options{.workers = 2, .seed = 7, .rank = rank, .ranks = 2};
    inproc::run_ranks(testing::processes_of(graph, options), [&](const std::shared_ptr<Engine>& engine) {
      Process process = testing::process_of(engine, graph, options);
      if (engine->info().rank > 0) return serve(process);
      process.all_ranks = job[static_cast<std::size_t>(rank)];
      Consumer consumer(process);
      consume(consumer, rank);
      EXPECT_TRUE(consumer.shutdown(std::chrono::seconds(20)));
    });
  };
  std::thread other([&] { run_rank(1); });
  run_rank(0);
  other.join();
}

TEST(FullSync, StopsRanksWithWorkersTogetherInEveryEpoch) {
  const auto graph_of = [](int) {
    return first_numbers(23)
        .then(Shuffle{.buffer = 5})
        .then(Shard{})
        .then(Dispatch{})
        .then(testing::same())
        .then(FullSync{});
  };
  std::vector<std::int64_t> seen[2];
  run_job(graph_of, [&](Consumer& consumer, int rank) {
    for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
      consumer.reset(epoch);
      const auto items = testing::rest_of(consumer);
      EXPECT_EQ(items.size(), 11) << "of 23";
      for (const Tree& item : items) seen[rank].push_back(std::get<std::int64_t>(item.leaf()));
    }
  });
  for (std::size_t epoch = 0; epoch < 5; ++epoch) {
    std::set<std::int64_t> both;
    for (const auto& of : seen) both.insert(of.begin() + 11 * epoch, of.begin() + 11 * (epoch + 1));
    EXPECT_EQ(both.size(), 22) << "ranks have different items";
  }
}

TEST(FullSync, ResumesWithWorkersMidEpoch) {
  const auto graph_of = [](int) {
    return first_numbers(23).then(Shard{}).then(Dispatch{}).then(testing::same()).then(FullSync{});
  };
  run_job(graph_of, [&](Consumer& consumer, int) {
    consumer.reset(0);
    const auto all = testing::rest_of(consumer);
    for (const std::size_t given : {0U, 1U, 6U, 10U, 11U}) {
      consumer.reset(0);
      auto items = testing::take_from(consumer, given);
      const Cursor cursor = consumer.save();
      consumer.reset(0, cursor);
      for (auto& item : testing::rest_of(consumer)) items.push_back(std::move(item));
      EXPECT_EQ(items, all) << given;
    }
  });
}

TEST(FullSync, FailsAllRanksIfAWorkerOfOneFails) {
  const auto graph_of = [](int rank) {
    const Map broken{[rank](Item item) {
      if (rank == 1 && std::get<Tree>(item) == Tree(std::int64_t{7})) throw SourceError("cannot decode");
      return item;
    }};
    return first_numbers(23).then(Dispatch{}).then(broken).then(FullSync{});
  };
  run_job(graph_of, [&](Consumer& consumer, int rank) {
    consumer.reset(0);
    EXPECT_EQ(testing::take_from(consumer, 7).size(), 7);
    const Failure failure = failure_of([&] { consumer.next(); });
    EXPECT_EQ(failure.message, "cannot decode");
    EXPECT_EQ(failure.process, rank == 1 ? "process 3" : "rank 1, process 3");
    consumer.reset(1);
    EXPECT_EQ(testing::take_from(consumer, 3).size(), 3) << "the next epoch begins";
  });
}

}  // namespace
}  // namespace levada::pipeline
