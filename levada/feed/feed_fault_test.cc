#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <latch>
#include <thread>

#include "levada/engine/inproc/inproc.h"
#include "levada/feed/feed.h"
#include "levada/feed/source_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Numbered;
using testing::NumberedOptions;

/// Runs `body` on every rank; what it throws is the rank's message.
std::vector<std::string> errors_of(int ranks, const std::function<void(const std::shared_ptr<Engine>&)>& body,
                                   const inproc::Options& options = {}) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  inproc::run_ranks(
      ranks,
      [&](const std::shared_ptr<Engine>& engine) {
        auto& error = errors[static_cast<std::size_t>(engine->info().rank)];
        try {
          body(engine);
          error = "none";
        } catch (const Error& thrown) {
          error = std::string(thrown.name()) + ": " + thrown.what();
        }
      },
      options);
  return errors;
}

std::shared_ptr<Source> numbered(NumberedOptions options = {}) {
  return std::make_shared<Numbered>(std::move(options));
}

TEST(FeedFaults, AReaderThatThrowsEndsAllRanksAtItsStepWithItsMessage) {
  for (const char* readers : {"one", "all", "dp"}) {
    const Mesh mesh = Mesh::parse("dp=2,tp=2");
    const auto errors = errors_of(4, [&](const std::shared_ptr<Engine>& engine) {
      const auto broken = [](std::int64_t first) {
        if (first >= 10) throw SourceError("the well is dry");
      };
      Feed feed(engine, mesh, layouts::gpt(), numbered({.before = broken}),
                {.batch = 1, .readers = Readers::parse(readers)});
      for (int step = 0; step < 5; ++step) EXPECT_TRUE(feed.next()) << readers << step;
      feed.next();
    });
    for (const auto& error : errors) {
      EXPECT_THAT(error, AllOf(HasSubstr("SourceError"), HasSubstr("step 5"), HasSubstr("the well is dry"))) << readers;
    }
  }
}

TEST(FeedFaults, OneReaderOfSeveralThatThrowsEndsAllAtItsStep) {
  const auto errors = errors_of(3, [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    const auto broken = [rank](std::int64_t first) {
      if (rank == 1 && first >= 6) throw std::runtime_error("broken pipe");
    };
    Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(), numbered({.before = broken}),
              {.batch = 1, .readers = Readers::parse("all")});
    for (int step = 0; step < 2; ++step) EXPECT_TRUE(feed.next());
    feed.next();
  });
  for (const auto& error : errors) EXPECT_THAT(error, AllOf(HasSubstr("rank 1"), HasSubstr("broken pipe")));
}

TEST(FeedFaults, ARankThatLeavesEarlyEndsTheOthersInOrder) {
  for (const char* readers : {"one", "all"}) {
    for (const int leaver : {0, 2}) {
      std::vector<std::int64_t> steps(4);
      inproc::run_ranks(4, [&](const std::shared_ptr<Engine>& engine) {
        const int rank = engine->info().rank;
        Feed feed(engine, Mesh::parse("dp=2,tp=2"), layouts::gpt(), numbered({.samples = 1000000}),
                  {.batch = 1, .readers = Readers::parse(readers)});
        auto& step = steps[static_cast<std::size_t>(rank)];
        while (step < (rank == leaver ? 3 : 1000000) && feed.next()) ++step;
        feed.close();
        ASSERT_TRUE(feed.end());
        EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::left);
        EXPECT_EQ(feed.end()->rank, leaver);
        EXPECT_TRUE(rank == leaver || step == feed.end()->step);
      });
    }
  }
}

TEST(FeedFaults, ARankWithoutMemoryToSayThatItLeavesWaitsNoLongerThanItsTimeout) {
  const auto errors =
      errors_of(2,
                [](const std::shared_ptr<Engine>& engine) {
                  const bool leads = engine->info().rank == 0;
                  Feed feed(engine, Mesh::parse("dp=2"), layouts::gpt(), numbered({.samples = 1'000'000}),
                            {.batch = 1, .timeout = std::chrono::seconds(leads ? 60 : 2)});
                  EXPECT_TRUE(feed.next());
                  if (leads) {
                    while (feed.next()) {
                    }
                    return;
                  }
                  std::vector<Block> held;
                  while (auto block = engine->try_allocate(4096)) held.push_back(std::move(*block));
                  EXPECT_THROW(feed.close(), Timeout);
                  held.clear();
                  feed.close();
                },
                {.memory_bytes = std::size_t{1} << 20});
  EXPECT_THAT(errors[1], "none");
}

TEST(FeedFaults, AllRanksMayLeaveAtTheSameStepOneAfterTheOther) {
  std::latch rank_0_is_gone(1);
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    {
      Feed feed(engine, Mesh::parse("tp=2"), layouts::gpt(), numbered({.samples = 1000}), {.batch = 1});
      EXPECT_TRUE(feed.next());
      if (engine->info().rank == 1) rank_0_is_gone.wait();
    }
    rank_0_is_gone.count_down(engine->info().rank == 0 ? 1 : 0);
  });
}

TEST(FeedFaults, AWaitThatTakesTooLongSaysWhoWaitsForWhom) {
  std::latch all_gave_up(3);
  const auto errors = errors_of(3, [&](const std::shared_ptr<Engine>& engine) {
    const auto hangs = [&](std::int64_t first) {
      if (first == 6) all_gave_up.wait();
    };
    Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(), numbered({.before = hangs}),
              {.batch = 1, .timeout = std::chrono::milliseconds(300)});
    EXPECT_TRUE(feed.next());
    EXPECT_TRUE(feed.next());
    try {
      feed.next();
    } catch (const Timeout&) {
      all_gave_up.count_down();
      throw;
    }
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("Timeout: rank " + std::to_string(rank)), HasSubstr("step 2"), HasSubstr("rank 0"),
                      HasSubstr("counting samples")));
  }
}

TEST(FeedFaults, FullMemorySaysWhoHoldsWhat) {
  const auto errors =
      errors_of(2,
                [&](const std::shared_ptr<Engine>& engine) {
                  Feed feed(engine, Mesh::parse("tp=2"), layouts::gpt(), numbered({.samples = 100, .sequence = 4096}),
                            {.batch = 8, .depth = 4, .timeout = std::chrono::milliseconds(300)});
                  std::vector<Batch> kept;
                  while (auto batch = feed.next()) kept.push_back(std::move(*batch));
                },
                {.memory_bytes = 3 << 20});
  for (const auto& error : errors) EXPECT_THAT(error, AllOf(HasSubstr("Timeout"), HasSubstr("rank 1 holds")));
}

TEST(FeedFaults, ARoundWithoutMemoryForAllOfItsMessagesReachesNobody) {
  const auto errors = errors_of(3,
                                [&](const std::shared_ptr<Engine>& engine) {
                                  Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(),
                                            numbered({.sequence = 4096, .in_memory_given = false}),
                                            {.batch = 8, .timeout = std::chrono::milliseconds(300)});
                                  EXPECT_FALSE(feed.next()) << "a batch of " << 8 * 4096 * 28 << " bytes";
                                },
                                {.memory_bytes = 5 << 19});
  for (const auto& error : errors) EXPECT_THAT(error, AllOf(HasSubstr("Timeout"), HasSubstr("step 0")));
}

TEST(FeedFaults, ALostReaderIsSeenByAllAfterWhatItSent) {
  const auto errors = errors_of(3, [&](const std::shared_ptr<Engine>& engine) {
    const auto dies = [&](std::int64_t first) {
      if (first == 6) inproc::lose(*engine);
    };
    Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(), numbered({.before = dies}), {.batch = 1});
    while (feed.next()) {
    }
  });
  for (const int rank : {1, 2}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], AllOf(HasSubstr("PeerLost"), HasSubstr("rank 0")));
  }
}

TEST(FeedFaults, ALeadThatLeavesWithoutAnEndIsLostToThoseWhoseReaderLives) {
  std::latch hanging(1), leaving(1);
  std::promise<void> seen;
  const auto is_seen = seen.get_future().share();
  const auto errors = errors_of(4, [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    const auto hangs = [&](std::int64_t first) {
      if (rank != 0 || first < 2) return;
      hanging.count_down();
      leaving.wait();
      std::this_thread::sleep_for(std::chrono::seconds(1));  // for longer than who leaves waits for it
    };
    const auto give_up = [&] {
      leaving.count_down();
      throw std::runtime_error("it waits no longer");
    };
    Feed feed(
        engine, Mesh::parse("dp=2,tp=2"), layouts::gpt(), numbered({.before = hangs}),
        {.batch = 1, .readers = Readers::parse("dp"), .poll = rank == 0 ? std::function<void()>(give_up) : nullptr});
    if (rank == 0) return hanging.wait();
    if (rank < 3) {
      if (is_seen.wait_for(std::chrono::seconds(20)) == std::future_status::ready) return;
      return engine->abort("rank 3 does not see that the lead has left");
    }
    try {
      while (feed.next()) continue;
    } catch (const Error&) {
      seen.set_value();
      throw;
    }
  });
  EXPECT_THAT(errors[3], AllOf(HasSubstr("PeerLost"), HasSubstr("rank 0 left the feed before step")));
}

TEST(FeedFaults, WhatDoesNotFitIsRefusedOnAllRanksAlike) {
  const auto refusal = [](const Mesh& mesh, const FeedOptions& options, int differing_rank = -1,
                          std::shared_ptr<Source> source = numbered()) {
    const auto errors = errors_of(2, [&](const std::shared_ptr<Engine>& engine) {
      FeedOptions own = options;
      if (engine->info().rank == differing_rank) own.batch = 7;
      Feed feed(engine, mesh, layouts::gpt(), source, own);
    });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  };
  EXPECT_THAT(refusal(Mesh::parse("dp=2,tp=2"), {}), HasSubstr("mesh 'dp=2,tp=2' has 4 ranks, the job has 2"));
  EXPECT_THAT(refusal(Mesh::parse("pp=2"), {.depth = 1}), HasSubstr("depth is 1, but pp has 2 stages"));
  EXPECT_THAT(refusal(Mesh::parse("dp=2"), {.batch = 0}), HasSubstr("batch is 0"));
  EXPECT_THAT(refusal(Mesh::parse("dp=2"), {}, 1), HasSubstr("feed's batch: rank 1 has '7', rank 0 has '1'"));
  EXPECT_THAT(refusal(Mesh::parse("dp=2"), {}, -1, nullptr),
              HasSubstr("rank 0 reads for the feed but was given no source"));
}

TEST(FeedFaults, ALayoutThatNamesAFieldTheBatchLacksEndsAllRanksWithItsName) {
  const auto errors = errors_of(2, [&](const std::shared_ptr<Engine>& engine) {
    Layout layout = layouts::gpt();
    layout.rules.push_back({"images", {Shard{"dp", 0}}});
    Feed feed(engine, Mesh::parse("dp=2"), layout, numbered(), {.batch = 1});
    feed.next();
  });
  for (const auto& error : errors) EXPECT_THAT(error, AllOf(HasSubstr("InvalidArgument"), HasSubstr("images")));
}

}  // namespace
}  // namespace levada
