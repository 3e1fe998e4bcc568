#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
using testing::numbered;
using testing::NumberedOptions;

TEST(FeedTimeouts, ATimeoutNamesTheRankThatWaitsAndTheRankWaitedFor) {
  std::latch all_gave_up(3);  // each by its own Timeout, or by the first rank's
  const auto errors = errors_of(3, [&](const std::shared_ptr<Engine>& engine) {
    const auto hangs = [&](std::int64_t first) {
      if (first == 6) all_gave_up.wait();
    };
    Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(), numbered({.before = hangs}),
              {.batch = 1, .timeout = std::chrono::seconds(4)});
    EXPECT_TRUE(feed.next());
    EXPECT_TRUE(feed.next());
    try {
      feed.next();
    } catch (const Error&) {
      all_gave_up.count_down();
      throw;
    }
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, AllOf(ContainsRegex("Timeout: rank [0-2] waited"), HasSubstr("step 2"), HasSubstr("rank 0"),
                             HasSubstr("counting samples")));
  }
}

TEST(FeedTimeouts, ATimeoutReachesTheOtherRanksWithRankStepAndException) {
  for (const int hung : {0, 2}) {
    std::latch all_heard(3);
    const auto errors = errors_of(4, [&](const std::shared_ptr<Engine>& engine) {
      const int rank = engine->info().rank;
      Feed feed(engine, Mesh::parse("tp=4"), layouts::gpt(), numbered({.samples = 1'000'000}),
                {.batch = 1, .timeout = std::chrono::seconds(2)});
      EXPECT_TRUE(feed.next());
      if (rank == hung) return all_heard.wait();
      try {
        while (feed.next()) {
        }
      } catch (const PeerLost& lost) {
        EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::abandoned);
        EXPECT_EQ(feed.end()->rank, lost.rank());
        all_heard.count_down();
        throw;
      } catch (const Timeout&) {
        EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::left);
        all_heard.count_down();
        throw;
      }
    });
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == hung) continue;
      EXPECT_THAT(
          errors[static_cast<std::size_t>(rank)],
          AnyOf(ContainsRegex("^Timeout: rank [0-3] waited"),
                ContainsRegex("^PeerLost: rank [0-3] left the feed at step [0-9]+ with Timeout: rank [0-3] waited")));
    }
  }
}

TEST(FeedTimeouts, ATimeoutNamesTheRankThatIsFurthestBehind) {
  std::latch done(3);
  const auto errors = errors_of(4, [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    Feed feed(engine, Mesh::parse("tp=4"), layouts::gpt(), numbered({.samples = 1'000'000}),
              {.batch = 1, .timeout = std::chrono::seconds(4)});
    EXPECT_TRUE(feed.next());
    if (rank == 3) return done.wait();
    try {
      while (feed.next()) {
      }
    } catch (const Error&) {
      done.arrive_and_wait();
      throw;
    }
  });
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("Timeout"), HasSubstr("rank 3 has not received")));
  }
}

TEST(FeedTimeouts, FullMemoryReportsItsHolders) {
  std::latch both_gave_up(2);  // before either leaves, which would end the other's wait
  const auto errors =
      errors_of(2,
                [&](const std::shared_ptr<Engine>& engine) {
                  std::vector<Batch> kept;
                  Feed feed(engine, Mesh::parse("tp=2"), layouts::gpt(), numbered({.samples = 100, .sequence = 4096}),
                            {.batch = 8, .depth = 4, .timeout = std::chrono::seconds(4)});
                  try {
                    while (auto batch = feed.next()) kept.push_back(std::move(*batch));
                  } catch (const Error&) {
                    both_gave_up.arrive_and_wait();
                    throw;
                  }
                },
                {.memory_bytes = 3 << 20});
  for (const auto& error : errors) EXPECT_THAT(error, AllOf(HasSubstr("Timeout"), ContainsRegex("rank [01] holds")));
}

TEST(FeedTimeouts, ARankThatCannotLeaveEndsTheFeed) {
  std::latch all_read(1), left(1);
  const auto errors = errors_of(2, [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    const auto before = [&](std::int64_t first) {
      if (rank == 0 && first == 2) left.wait();                     // the lead receives no report meanwhile
      if (rank == 1 && first == 2 * 20 + 1) all_read.count_down();  // more reports than there is room for
    };
    Feed feed(engine, Mesh::parse("dp=2"), layouts::gpt(), numbered({.samples = 1'000'000, .before = before}),
              {.batch = 1, .readers = Readers::parse("dp"), .depth = 32, .timeout = std::chrono::seconds(2)});
    if (rank == 0) return left.wait();
    std::thread watch([&] { EXPECT_FALSE(feed.await_loss()); });
    all_read.wait();
    EXPECT_THROW(feed.close(), Timeout);
    EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::left);
    EXPECT_THAT(feed.end()->message, HasSubstr("Timeout"));
    watch.join();
    feed.close();
    left.count_down();
  });
  EXPECT_THAT(errors, ElementsAre("none", "none"));
}

TEST(FeedTimeouts, AnInterruptedCloseEndsTheFeed) {
  struct Signal {};
  std::latch all_read(1), left(1);
  const auto errors = errors_of(2, [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    const auto before = [&](std::int64_t first) {
      if (rank == 0 && first == 2) left.wait();
      if (rank == 1 && first == 2 * 20 + 1) all_read.count_down();
    };
    bool is_leaving = false;
    const auto poll = [&] {
      if (is_leaving) throw Signal();
    };
    Feed feed(engine, Mesh::parse("dp=2"), layouts::gpt(), numbered({.samples = 1'000'000, .before = before}),
              {.batch = 1, .readers = Readers::parse("dp"), .depth = 32, .poll = poll});
    if (rank == 0) {
      left.wait();
      feed.next();
      return;
    }
    all_read.wait();
    is_leaving = true;
    EXPECT_THROW(feed.close(), Signal);
    EXPECT_EQ(feed.end()->cause, FeedEnd::Cause::left);
    left.count_down();
  });
  EXPECT_THAT(errors[0], HasSubstr("it could not leave the feed"));
  EXPECT_EQ(errors[1], "none");
}

TEST(FeedStatus, StaysReadingWhileAReaderReadsInsideNext) {
  std::latch reading(1);
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    std::shared_ptr<Engine> group;
    const auto slow = [&](std::int64_t first) {
      if (first != 2) return;
      reading.count_down();
      for (int look = 0; look < 50; ++look) {
        EXPECT_STREQ(group->status(0).operation.data(), "reading");
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    };
    Feed feed(engine, Mesh::parse("dp=2"), layouts::gpt(), numbered({.before = slow}), {.batch = 1, .ahead = false});
    group = feed.group();
    EXPECT_TRUE(feed.next());
    if (engine->info().rank == 1) {
      reading.wait();
      feed.request_stop();
    }
    while (feed.next()) {
    }
  });
}

}  // namespace
}  // namespace levada
