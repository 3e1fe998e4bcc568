#include "levada/pipeline/epoch_end_barrier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <mutex>
#include <thread>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/shm/forked_ranks_testing.h"
#include "levada/pipeline/ranks_testing.h"

namespace levada::pipeline {
namespace {

using ::testing::HasSubstr;
using testing::on_threads_and_processes;
using testing::require;
using ::testing::StartsWith;
using Kind = Lookahead::Kind;

struct Ending {
  Kind kind = Kind::there;
  std::int64_t item = 0;
  int failed_rank = -1;
  std::optional<Failure> failure;
};

/// Processes `items` items of this rank, looking `bunch` ahead, after which it ends or, with `fails`, throws. Returns
/// how it ended.
Ending go_through(EpochEndBarrier& barrier, std::int64_t items, bool fails, std::int64_t bunch = 1,
                  std::int64_t begin = 0) {
  std::int64_t reported = begin;
  for (std::int64_t item = begin;; ++item) {
    if (item == reported && reported <= items) {
      Lookahead mine{.until = std::min(item + bunch, items)};
      reported = item + bunch;
      if (reported > items) mine.kind = fails ? Kind::failed : Kind::ended;
      if (mine.kind == Kind::failed) {
        mine.failure = Failure{.stage = "map", .process = "rank " + std::to_string(barrier.rank()), .item = items};
      }
      barrier.report(mine);
    }
    const auto all = barrier.await(item);
    if (all.kind == Kind::there) continue;
    return {all.kind, item, all.failed_rank, all.failure ? std::optional(*all.failure) : std::nullopt};
  }
}

TEST(EpochEndBarrier, AgreesAcrossSeveralGroups) {
  constexpr int ranks = 18;
  const auto engines = inproc::make_group(ranks);
  std::vector<std::thread> threads;
  std::atomic<int> same{0};
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      EpochEndBarrier barrier(engines[static_cast<std::size_t>(rank)], {});
      const Ending end = go_through(barrier, rank == 17 ? 41 : 50 + rank, rank == 17, 1 + rank % 5);
      same += end.item == 41 && end.kind == Kind::failed && end.failed_rank == 17 && end.failure->process == "rank 17";
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(same, ranks);
}

/// Counts the messages that this rank sends and receives in groups made from `engine`.
class CountingEngine final : public Engine {
 public:
  struct Counts {
    int sent = 0, received = 0;
  };
  CountingEngine(std::shared_ptr<Engine> engine, Counts& counts) : engine_(std::move(engine)), counts_(counts) {}

  using Engine::open;
  const EngineInfo& info() const override { return engine_->info(); }
  bool shares_memory(int rank) const override { return engine_->shares_memory(rank); }
  std::shared_ptr<Engine> subgroup(std::span<const int> ranks, std::string_view name) override {
    return std::make_shared<CountingEngine>(engine_->subgroup(ranks, name), counts_);
  }
  std::shared_ptr<Channel> open(int from, std::span<const int> to, int window, ChannelOptions options) override {
    return engine_->open(from, to, window, std::move(options));
  }
  using Engine::try_allocate;
  std::optional<Block> try_allocate(std::size_t bytes, BlockUse use) override {
    return engine_->try_allocate(bytes, use);
  }
  bool try_publish(Channel& channel, Block& block, std::size_t bytes) override {
    const bool sent = engine_->try_publish(channel, block, bytes);
    counts_.sent += sent;
    return sent;
  }
  bool try_publish(Channel& channel, const Lease& lease) override { return engine_->try_publish(channel, lease); }
  Received try_receive(Channel& channel) override {
    auto received = engine_->try_receive(channel);
    counts_.received += received.message.has_value();
    return received;
  }
  bool is_abandoned(Channel& channel) override { return engine_->is_abandoned(channel); }
  Woken wait(const WaitFor& conditions, Deadline deadline) override { return engine_->wait(conditions, deadline); }
  void wake() override { engine_->wake(); }
  void on_change(std::function<void()> hook) override { engine_->on_change(std::move(hook)); }
  void abort(std::string_view reason, ErrorKind kind) noexcept override { engine_->abort(reason, kind); }
  std::optional<Cause> cause() override { return engine_->cause(); }
  void close(Channel& channel, End end) noexcept override { engine_->close(channel, end); }
  void post(const Status& status) override { engine_->post(status); }
  Status status(int rank) override { return engine_->status(rank); }
  std::vector<Holder> holders(Channel& channel) override { return engine_->holders(channel); }
  std::uint64_t memory_in_use() override { return engine_->memory_in_use(); }
  std::uint64_t trim() override { return engine_->trim(); }

 private:
  std::shared_ptr<Engine> engine_;
  Counts& counts_;
};

TEST(EpochEndBarrier, MessagesPerRankGrowLogarithmically) {
  constexpr int bunches = 10, bunch = 16;
#if defined(__SANITIZE_THREAD__)
  const std::vector sizes = {16, 64};  // the sanitizer supports fewer threads
#else
  const std::vector sizes = {16, 64, 256};
#endif
  for (const int ranks : sizes) {
    std::vector<CountingEngine::Counts> counts(static_cast<std::size_t>(ranks));
    inproc::run_ranks(ranks, [&](const std::shared_ptr<Engine>& engine) {
      const auto counting =
          std::make_shared<CountingEngine>(engine, counts[static_cast<std::size_t>(engine->info().rank)]);
      EpochEndBarrier barrier(counting, {});
      require(go_through(barrier, (bunches - 1) * bunch, false, bunch).item == (bunches - 1) * bunch, "another end");
    });
    const int levels = ranks <= EndTree::group_size ? 1 : 2;
    for (const auto& rank : counts) {
      // A report per level, and the result in each level below the top.
      EXPECT_LE(rank.sent, bunches * (2 * levels - 1)) << ranks;
      EXPECT_LE(rank.received, bunches * (EndTree::group_size * levels)) << ranks;
    }
    EXPECT_GT(counts.front().sent, 0);
  }
}

TEST(EpochEndBarrier, EndsAllRanksWithTheShortestOne) {
  on_threads_and_processes(3, [](const std::shared_ptr<Engine>& engine) {
    const std::vector<std::int64_t> items = {7, 5, 300};
    EpochEndBarrier barrier(engine, {});
    const Ending end = go_through(barrier, items[static_cast<std::size_t>(engine->info().rank)], false);
    require(end.item == 5 && end.kind == Kind::ended, "not at 5");
  });
}

TEST(EpochEndBarrier, IsIndependentOfTheLookahead) {
  for (const std::int64_t bunch : {2, 7, 64, 1000}) {
    on_threads_and_processes(3, [bunch](const std::shared_ptr<Engine>& engine) {
      const int rank = engine->info().rank;
      EpochEndBarrier barrier(engine, {});
      const Ending end = go_through(barrier, rank == 1 ? 501 : 600 + rank, false, rank == 0 ? 1 : bunch);
      require(end.item == 501 && end.kind == Kind::ended, "not at 501");
    });
  }
}

TEST(EpochEndBarrier, AllowsRanksToBeginAtDifferentItems) {
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    EpochEndBarrier barrier(engine, {});
    require(go_through(barrier, 30 + rank, false, 4, 9 * rank).item == 30, "not at 30");
  });
}

TEST(EpochEndBarrier, WorksWithASingleRank) {
  on_threads_and_processes(1, [](const std::shared_ptr<Engine>& engine) {
    EpochEndBarrier barrier(engine, {});
    require(go_through(barrier, 4, false).item == 4, "not at 4");
  });
}

TEST(EpochEndBarrier, FailsAllRanksIfOneFails) {
  on_threads_and_processes(3, [](const std::shared_ptr<Engine>& engine) {
    EpochEndBarrier barrier(engine, {});
    const Ending end = go_through(barrier, engine->info().rank == 2 ? 3 : 100, engine->info().rank == 2, 2);
    require(end.kind == Kind::failed && end.item == 3, "not at 3");
    require(end.failure == Failure{.stage = "map", .process = "rank 2", .item = 3}, "another failure");
    require(end.failed_rank == 2, "another rank");
  });
}

TEST(EpochEndBarrier, ReportsTheLowestRankThatFailsAtAnItem) {
  on_threads_and_processes(4, [](const std::shared_ptr<Engine>& engine) {
    EpochEndBarrier barrier(engine, {});
    const Ending end = go_through(barrier, 2, engine->info().rank % 2 == 1);
    require(end.kind == Kind::failed && end.failed_rank == 1, "not rank 1's failure");
    require(end.failure->process == "rank 1", "another rank's failure");
  });
}

TEST(EpochEndBarrier, WorksEpochAfterEpoch) {
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    for (std::int64_t epoch = 0; epoch < 500; ++epoch) {
      EpochEndBarrier barrier(engine, {});
      const std::int64_t items = (epoch + engine->info().rank) % 3;
      const std::int64_t least = std::min(epoch % 3, (epoch + 1) % 3);
      require(go_through(barrier, items, false).item == least, "epoch " + std::to_string(epoch));
    }
  });
}

TEST(EpochEndBarrier, NamesARankThatLeftAndItsPostedException) {
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    const std::string_view last = "the test";
    std::string error = "(none)";
    if (engine->info().rank == 1) {
      EpochEndBarrier(engine, {}).report({.until = 1});
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      engine->post(Status::make(raised_operation, -1, -1, "ValueError: loss is NaN"));
      while (engine->status(0).operation.data() != last) std::this_thread::yield();
    } else {
      EpochEndBarrier barrier(engine, {});
      try {
        go_through(barrier, 10, false);
      } catch (const PeerLost& e) {
        error = e.what();
      }
    }
    agree(*engine, {}, Deadline::after(std::chrono::seconds(10)), last);
    if (engine->info().rank == 0) {
      require(error.starts_with("rank 1 left with ValueError: loss is NaN before item 1 of full_sync: "), error);
    }
  });
}

TEST(EpochEndBarrier, TimeoutNamesTheAwaitedRank) {
  const auto engines = inproc::make_group(2);
  EpochEndBarrier barrier(engines[0], {.stage = "meet", .timeout = std::chrono::milliseconds(20)});
  engines[1]->post(Status::make("reading", 5, -1, "corpus.jsonl"));
  barrier.report({.until = 8});
  try {
    barrier.await(7);
    FAIL();
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(),
                StartsWith("rank 0 waited 20.0 ms in meet for step 7 from rank 1; rank 1: reading step 5"));
  }
  // A rank that waits for rank 0 may time out a moment later, and follows this status to rank 1.
  EXPECT_EQ(engines[0]->status(0).waiting_for, 1);
}

TEST(EpochEndBarrier, PrintsAReminderOfALongWait) {
  const auto engines = inproc::make_group(2);
  EpochEndBarrier barrier(engines[0], {.stage = "meet",
                                       .timeout = std::chrono::seconds(3),
                                       .remind_after = std::chrono::milliseconds(20),
                                       .poll = [] {}});
  barrier.report({.until = 8});
  ::testing::internal::CaptureStderr();
  EXPECT_THROW(barrier.await(7), Timeout);
  const auto text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, StartsWith("levada: rank 0 waited "));
  EXPECT_THAT(text, HasSubstr(" in meet for step 7 from rank 1; rank 1: has posted nothing; still waiting\n"));
}

TEST(EpochEndBarrier, ReturnsAnOutcomeOnlyOnceItsOwnReportIsSent) {
  const auto engines = inproc::make_group(2);
  struct Interrupted {};
  bool may_wait = false;
  EpochEndBarrier ahead(engines[0], {.stage = "meet", .poll = [&] {
                                       if (!may_wait) throw Interrupted{};
                                     }});
  EpochEndBarrier behind(engines[1], {.stage = "meet"});
  behind.report({.until = 100});
  std::int64_t item = 0;
  try {
    for (; item < 100; ++item) {
      ahead.report({.until = item + 1});
      ahead.await(item);
    }
    FAIL() << "reports that no rank receives must fill the channel";
  } catch (const Interrupted&) {
    may_wait = true;
  }
  behind.report({.until = 101});
  EXPECT_EQ(behind.await(item - 1).kind, Kind::there);
  EXPECT_EQ(ahead.await(item).kind, Kind::there);
}

TEST(EpochEndBarrier, NamesARankThatDoesNotReceiveReports) {
  const auto engines = inproc::make_group(3);
  const EpochEndBarrierOptions options{.stage = "meet", .timeout = std::chrono::milliseconds(200)};
  EpochEndBarrier ahead(engines[0], options), beside(engines[1], options), hung(engines[2], options);
  beside.report({.until = 100});
  hung.report({.until = 100});
  std::string text;
  for (std::int64_t item = 0; item < 100 && text.empty(); ++item) {
    ahead.report({.until = item + 1});
    try {
      ahead.await(item);
      beside.await(item);
    } catch (const Timeout& error) {
      text = error.what();
    }
  }
  EXPECT_THAT(text, AllOf(StartsWith("rank 0 waited "), HasSubstr(" from rank 2; rank 2: ")));
}

TEST(EpochEndBarrier, PollCanEndAWait) {
  const auto engines = inproc::make_group(2);
  struct Interrupted {};
  EpochEndBarrier barrier(engines[0], {.poll = [] { throw Interrupted{}; }});
  barrier.report({.until = 1});
  EXPECT_THROW(barrier.await(0), Interrupted);
}

TEST(EpochEndBarrier, DetectsALostRank) {
  const auto engines = inproc::make_group(2);
  EpochEndBarrier first(engines[0], {}), second(engines[1], {});
  first.report({.until = 1});
  second.report({.until = 1});
  inproc::lose(*engines[1]);
  EXPECT_EQ(first.await(0).kind, Kind::there) << "its earlier report remains valid";
  EXPECT_THROW(first.report({.until = 2}), PeerLost);
}

TEST(EpochEndBarrier, DetectsAKilledProcessSoon) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    EpochEndBarrier barrier(engine, {});
    barrier.report({.until = 1});
    barrier.await(0);
    if (engine->info().rank == 1) ::raise(SIGKILL);
    const auto begin = Clock::now();
    try {
      barrier.report({.until = 2});
      barrier.await(1);
    } catch (const PeerLost& lost) {
      require(lost.rank() == 1, "another rank");
      require(Clock::now() - begin < std::chrono::seconds(5), "late");
      throw std::runtime_error("rank 1 was lost");
    }
  };
  const auto error = shm::test::run_forked(2, body, {.memory_bytes = std::size_t{64} << 20});
  EXPECT_THAT(error, HasSubstr("rank 1 was lost"));
}

}  // namespace
}  // namespace levada::pipeline
