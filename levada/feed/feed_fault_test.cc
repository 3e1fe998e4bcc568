#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <latch>
#include <thread>

#include "levada/engine/inproc/inproc.h"
#include "levada/feed/errors_testing.h"
#include "levada/feed/feed.h"
#include "levada/feed/source_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using testing::errors_of;
using ::testing::HasSubstr;
using testing::Numbered;
using testing::numbered;
using testing::NumberedOptions;

TEST(FeedFaults, AReadersExceptionEndsAllRanksAtItsStepWithItsMessage) {
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

TEST(FeedFaults, AnErrorAfterABatchReceivedAheadIsThrownAtItsStep) {
  const auto errors = errors_of(2, [&](const std::shared_ptr<Engine>& engine) {
    const auto broken = [](std::int64_t first) {
      if (first >= 4) throw SourceError("the well is dry");
    };
    Feed feed(engine, Mesh::parse("dp=2"), layouts::gpt(), numbered({.before = broken}), {.batch = 1});
    EXPECT_TRUE(feed.next());
    while (!feed.receive_ahead()) std::this_thread::yield();
    EXPECT_TRUE(feed.next());
    for (int i = 0; i < 1000; ++i) EXPECT_FALSE(feed.receive_ahead());
    EXPECT_FALSE(feed.end());
    feed.next();
  });
  for (const auto& error : errors) EXPECT_THAT(error, AllOf(HasSubstr("SourceError"), HasSubstr("step 2")));
}

TEST(FeedFaults, OneOfSeveralReadersThatThrowsEndsAllRanksAtItsStep) {
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

TEST(FeedFaults, ADepartureIsAnErrorWithItsReasonOnRanksThatContinue) {
  for (const char* readers : {"one", "all"}) {
    for (const int leaver : {0, 2}) {
      for (const char* reason : {"", "ValueError: loss is NaN"}) {
        const auto errors = errors_of(4, [&](const std::shared_ptr<Engine>& engine) {
          const int rank = engine->info().rank;
          Feed feed(engine, Mesh::parse("dp=2,tp=2"), layouts::gpt(), numbered({.samples = 1000000}),
                    {.batch = 1, .readers = Readers::parse(readers)});
          try {
            for (int step = 0; step < (rank == leaver ? 3 : 1000000); ++step) EXPECT_TRUE(feed.next());
          } catch (const PeerLost& lost) {
            EXPECT_EQ(lost.rank(), leaver);
            EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::abandoned);
            EXPECT_EQ(feed.end()->rank, leaver);
            EXPECT_EQ(feed.end()->message, reason);
            throw;
          }
          feed.close(reason);
          EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::left);
          EXPECT_EQ(feed.end()->at.step, 3);
        });
        const auto left = "rank " + std::to_string(leaver) + " left the feed at step 3";
        for (int rank = 0; rank < 4; ++rank) {
          const auto& error = errors[static_cast<std::size_t>(rank)];
          if (rank == leaver) EXPECT_THAT(error, "none");
          else EXPECT_THAT(error, AllOf(HasSubstr("PeerLost"), HasSubstr(left), HasSubstr(reason)));
        }
      }
    }
  }
}

TEST(FeedFaults, ADepartureReachesWaitingRanksWhileTheReaderReads) {
  for (const auto& [readers, ahead] : {std::pair{"one", true}, {"one", false}, {"all", true}}) {
    std::latch seen(1);
    const auto errors = errors_of(3, [&, readers = readers, ahead = ahead](const std::shared_ptr<Engine>& engine) {
      const int rank = engine->info().rank;
      std::function<void()> waiting;
      const auto slow = [&](std::int64_t first) {
        if (first < 6) return;
        while (!seen.try_wait()) {  // as a waiting source does
          if (waiting) waiting();
          if (rank != 0) return;  // only the reader that leads is slow
          std::this_thread::yield();
        }
      };
      class Waiting final : public testing::Numbered {
       public:
        Waiting(NumberedOptions options, std::function<void()>& to_call)
            : Numbered(std::move(options)), waiting_(to_call) {}
        void on_wait(std::function<void()> call) override { waiting_ = std::move(call); }

       private:
        std::function<void()>& waiting_;
      };
      Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(),
                std::make_shared<Waiting>(NumberedOptions{.before = slow}, waiting),
                {.batch = 1, .readers = Readers::parse(readers), .ahead = ahead});
      for (int step = 0; step < 2; ++step) EXPECT_TRUE(feed.next());
      if (rank == 1) return feed.close("ValueError: no");
      try {
        feed.next();
      } catch (const PeerLost&) {
        if (rank == 2) seen.count_down();
        throw;
      }
    });
    EXPECT_THAT(errors[1], "none");
    for (const int rank : {0, 2}) {
      EXPECT_THAT(errors[rank], HasSubstr("rank 1 left the feed at step 2")) << readers << ahead;
    }
  }
}

TEST(FeedFaults, ALeadThatLeavesWithAReasonIsAnErrorEvenAtTheEnd) {
  for (const bool at_the_end : {false, true}) {
    std::latch gone(1);
    const auto errors = errors_of(3, [&](const std::shared_ptr<Engine>& engine) {
      Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(), numbered({.samples = at_the_end ? 9 : 90}), {.batch = 1});
      for (int step = 0; step < 3; ++step) EXPECT_TRUE(feed.next());
      if (engine->info().rank == 0) {
        feed.close("ValueError: no");
        return gone.count_down();
      }
      gone.wait();
      if (at_the_end) feed.next();
      else feed.close();
    });
    EXPECT_THAT(errors[0], "none");
    for (const int rank : {1, 2}) {
      EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                  HasSubstr("PeerLost: rank 0 left the feed at step 3 with ValueError: no"));
    }
  }
}

TEST(FeedFaults, AnExceptionThatUnwindsAFeedIsTheReasonOnOtherRanks) {
  // The lead's exception is an error even if the feed ends there.
  for (const auto& [leaver, samples] : {std::pair{1, 90}, std::pair{0, 90}, std::pair{0, 9}}) {
    std::latch gone(1);
    const auto errors = errors_of(3, [&, leaver = leaver, samples = samples](const std::shared_ptr<Engine>& engine) {
      const int rank = engine->info().rank;
      try {
        Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(), numbered({.samples = samples}), {.batch = 1});
        for (int step = 0; step < 3; ++step) EXPECT_TRUE(feed.next());
        if (rank == leaver) throw std::runtime_error("loss is NaN");
        gone.wait();
        while (feed.next()) continue;  // the rounds that had already been granted
      } catch (const std::runtime_error&) {
        if (rank != leaver) throw;
        gone.count_down();
      }
    });
    for (int rank = 0; rank < 3; ++rank) {
      const auto& error = errors[static_cast<std::size_t>(rank)];
      if (rank == leaver) EXPECT_THAT(error, "none");
      else EXPECT_THAT(error, HasSubstr(fmt::format("rank {} left the feed at step 3 with an exception", leaver)));
    }
  }
}

TEST(FeedFaults, AFeedCreatedDuringUnwindingDoesNotLeaveWithThatException) {
  struct Cleanup {
    std::shared_ptr<Engine> engine;
    std::string& error;
    ~Cleanup() {
      try {
        Feed feed(engine, Mesh::parse("dp=2"), layouts::gpt(), numbered({.samples = 1000}), {.batch = 1});
        while (feed.next() && engine->info().rank == 0) {
        }
      } catch (const PeerLost& lost) {
        error = lost.what();
      }
    }
  };
  std::array<std::string, 2> errors;
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    try {
      const Cleanup cleanup{engine, errors[static_cast<std::size_t>(engine->info().rank)]};
      throw std::runtime_error("unrelated");
    } catch (const std::runtime_error&) {  // unrelated to the feed
    }
  });
  EXPECT_THAT(errors, ElementsAre(HasSubstr("rank 1 left the feed at step 1, but rank 0 is at step"), ""));
}

TEST(FeedFaults, CloseWithoutMemoryEndsTheFeedAtItsTimeout) {
  std::latch gave_up(1);
  const auto errors =
      errors_of(2,
                [&](const std::shared_ptr<Engine>& engine) {
                  const bool leads = engine->info().rank == 0;
                  Feed feed(engine, Mesh::parse("dp=2"), layouts::gpt(), numbered({.samples = 1'000'000}),
                            {.batch = 1, .timeout = std::chrono::seconds(2)});
                  EXPECT_TRUE(feed.next());
                  if (leads) {
                    gave_up.wait();
                    while (feed.next()) {
                    }
                    return;
                  }
                  std::vector<Block> held;
                  while (auto block = engine->try_allocate(4096)) held.push_back(std::move(*block));
                  EXPECT_THROW(feed.close(), Timeout);
                  held.clear();
                  gave_up.count_down();
                  feed.close();
                },
                {.memory_bytes = std::size_t{1} << 20});
  EXPECT_THAT(errors[0], HasSubstr("rank 1 left the feed at step 1"));
  EXPECT_THAT(errors[1], "none");
}

TEST(FeedFaults, AllRanksMayLeaveAtTheSameStepInTurn) {
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

TEST(FeedFaults, ARoundThatDoesNotFitInMemoryReachesNoRank) {
  const auto errors = errors_of(3,
                                [&](const std::shared_ptr<Engine>& engine) {
                                  Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(),
                                            numbered({.sequence = 4096, .in_memory_given = false}),
                                            {.batch = 8, .timeout = std::chrono::minutes(30)});
                                  EXPECT_FALSE(feed.next()) << "a batch of " << 8 * 4096 * 28 << " bytes";
                                },
                                {.memory_bytes = 5 << 19});
  for (const auto& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("InvalidArgument"), HasSubstr("the messages of step 0"), HasSubstr("2.5 MiB")));
  }
}

TEST(FeedFaults, AllRanksDetectALostReaderAfterItsLastBatch) {
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

TEST(FeedFaults, ALeadThatIsInterruptedWhileItLeavesIsNamedEvenIfTheReaderLives) {
  std::latch hanging(1), leaving(1);
  std::promise<void> seen;
  const auto is_seen = seen.get_future().share();
  const auto errors = errors_of(4, [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    const auto hangs = [&](std::int64_t first) {
      if (rank != 0 || first < 2) return;
      hanging.count_down();
      leaving.wait();
      std::this_thread::sleep_for(std::chrono::seconds(1));  // longer than a leaving rank waits for it
    };
    bool has_started = false;
    const auto give_up = [&] {
      if (!has_started) return;
      leaving.count_down();
      throw std::runtime_error("it waits no longer");
    };
    Feed feed(
        engine, Mesh::parse("dp=2,tp=2"), layouts::gpt(), numbered({.before = hangs}),
        {.batch = 1, .readers = Readers::parse("dp"), .poll = rank == 0 ? std::function<void()>(give_up) : nullptr});
    has_started = true;
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
  EXPECT_THAT(errors[3], HasSubstr("rank 0 aborted: it could not leave the feed"));
}

TEST(FeedFaults, AllRanksRejectInvalidOptionsAlike) {
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
  const auto different_timeouts = errors_of(2, [](const std::shared_ptr<Engine>& engine) {
    Feed feed(engine, Mesh::parse("dp=2"), layouts::gpt(), numbered(),
              {.timeout = std::chrono::seconds(engine->info().rank == 0 ? 60 : 7)});
  });
  for (const auto& error : different_timeouts) {
    EXPECT_THAT(error, HasSubstr("feed's timeout: rank 1 has '7.0 s', rank 0 has '60.0 s'"));
  }
  EXPECT_THAT(refusal(Mesh::parse("dp=2"), {}, -1, nullptr),
              HasSubstr("rank 0 reads for the feed but was given no source"));
}

TEST(FeedFaults, AllRanksRejectDifferentFeeds) {
  const auto errors = errors_of(3, [](const std::shared_ptr<Engine>& engine) {
    Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(), numbered(),
              {.batch = 1, .name = engine->info().rank == 2 ? "pass 1 of feed 2" : "pass 1 of feed 1"});
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 2 starts pass 1 of feed 2, but rank 0 starts pass 1 of feed 1"));
  }
}

TEST(FeedFaults, AllRanksRejectReadersOfDifferentData) {
  const auto errors = [](const char* readers) {
    return errors_of(4, [&](const std::shared_ptr<Engine>& engine) {
      const bool differs = engine->info().rank == 2;
      Feed feed(engine, Mesh::parse("dp=2,tp=2"), layouts::gpt(),
                numbered({.identity = {{"corpus", "abc"}, {"shuffle", differs ? "seed 2" : "seed 1"}}}),
                {.batch = 1, .readers = Readers::parse(readers)});
      EXPECT_TRUE(feed.next());
    });
  };
  for (const auto& error : errors("dp")) {
    EXPECT_THAT(error, HasSubstr("shuffle: rank 2 has 'seed 2', rank 0 has 'seed 1'"));
  }
  for (const auto& error : errors("one")) EXPECT_THAT(error, "none") << "which rank 2 does not read";
}

TEST(FeedFaults, AnAbandonedStartEndsOnAllRanksAndTheNextOneSucceeds) {
  std::latch given_up(1);
  const auto errors = errors_of(3, [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    const auto start = [&](Duration timeout) {
      Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(), numbered(), {.batch = 1, .timeout = timeout});
      for (int step = 0; step < 3; ++step) EXPECT_EQ(feed.next()->step, step);
    };
    if (rank == 0) {
      EXPECT_THROW(start(std::chrono::milliseconds(50)), Timeout);
      given_up.count_down();
    } else {
      if (rank == 2) given_up.wait();  // rank 1 may be waiting in its start
      try {
        start(std::chrono::seconds(60));
        ADD_FAILURE() << "rank 0 is not there";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), AnyOf(HasSubstr("rank 0 aborted: rank 0 waited"),
                                        HasSubstr("rank 0 left before starting the feed")));
      }
    }
    start(std::chrono::seconds(60));
  });
  for (const auto& error : errors) EXPECT_THAT(error, "none");
}

TEST(FeedFaults, AMissingFieldOfTheLayoutEndsAllRanksWithItsName) {
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
