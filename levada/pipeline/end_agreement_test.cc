#include "levada/pipeline/end_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

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

/// Goes through `items` items of this rank's, of which it looks `bunch` ahead, and after which it ends or, where
/// `fails`, throws; gives how it ended.
Ending go_through(EndAgreement& agreement, std::int64_t items, bool fails, std::int64_t bunch = 1,
                  std::int64_t begin = 0) {
  std::int64_t said = begin;
  for (std::int64_t item = begin;; ++item) {
    if (item == said && said <= items) {
      Lookahead mine{.until = std::min(item + bunch, items)};
      said = item + bunch;
      if (said > items) mine.kind = fails ? Kind::failed : Kind::ended;
      if (mine.kind == Kind::failed) {
        mine.failure = Failure{.stage = "map", .process = "rank " + std::to_string(agreement.rank()), .item = items};
      }
      agreement.say(mine);
    }
    const auto all = agreement.await(item);
    if (all.kind == Kind::there) continue;
    return {all.kind, item, all.failed_rank, all.failure ? std::optional(*all.failure) : std::nullopt};
  }
}

TEST(CommonEnd, IsKnownOnceAllHaveSaid) {
  CommonEnd common(3);
  EXPECT_FALSE(common.outcome(0));
  common.apply(0, {.until = 5});
  common.apply(1, {.until = 3, .kind = Kind::ended});
  EXPECT_FALSE(common.outcome(0));
  common.apply(2, {.until = 2});
  EXPECT_EQ(common.outcome(1)->kind, Kind::there);
  EXPECT_FALSE(common.outcome(2)) << "rank 2 may fail there";
  EXPECT_FALSE(common.outcome(3)) << "or at 3";
  common.apply(2, {.until = 9});
  EXPECT_EQ(common.outcome(2)->kind, Kind::there);
  EXPECT_EQ(common.outcome(3)->kind, Kind::ended);
}

TEST(CommonEnd, AFailureGoesBeforeAnEndAndTheLowestRanksBeforeOthers) {
  CommonEnd common(4);
  common.apply(0, {.until = 3, .kind = Kind::ended});
  common.apply(1, {.until = 4, .kind = Kind::failed, .failure = Failure{.message = "later"}});
  common.apply(2, {.until = 3, .kind = Kind::failed, .failure = Failure{.message = "first"}});
  common.apply(3, {.until = 3, .kind = Kind::failed, .failure = Failure{.message = "second"}});
  EXPECT_EQ(common.outcome(2)->kind, Kind::there);
  const auto outcome = common.outcome(3);
  EXPECT_EQ(outcome->kind, Kind::failed);
  EXPECT_EQ(outcome->failed_rank, 2);
  EXPECT_EQ(outcome->failure->message, "first");
}

TEST(CommonEnd, NobodyTakesBackWhatItSaid) {
  CommonEnd common(1);
  common.apply(0, {.until = 5});
  EXPECT_THROW(common.apply(0, {.until = 4}), CorruptMessage);
  common.apply(0, {.until = 5, .kind = Kind::ended});
  EXPECT_THROW(common.apply(0, {.until = 6}), CorruptMessage);
}

TEST(EndAgreement, EndsAllRanksWithTheShortest) {
  on_threads_and_processes(3, [](const std::shared_ptr<Engine>& engine) {
    const std::vector<std::int64_t> items = {7, 5, 300};
    EndAgreement agreement(engine, {});
    const Ending end = go_through(agreement, items[static_cast<std::size_t>(engine->info().rank)], false);
    require(end.item == 5 && end.kind == Kind::ended, "not at 5");
  });
}

TEST(EndAgreement, IsTheSameHoweverManyItemsRanksLookAhead) {
  for (const std::int64_t bunch : {2, 7, 64, 1000}) {
    on_threads_and_processes(3, [bunch](const std::shared_ptr<Engine>& engine) {
      const int rank = engine->info().rank;
      EndAgreement agreement(engine, {});
      const Ending end = go_through(agreement, rank == 1 ? 501 : 600 + rank, false, rank == 0 ? 1 : bunch);
      require(end.item == 501 && end.kind == Kind::ended, "not at 501");
    });
  }
}

TEST(EndAgreement, HoldsForRanksThatBeginAtDifferentItems) {
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    EndAgreement agreement(engine, {});
    require(go_through(agreement, 30 + rank, false, 4, 9 * rank).item == 30, "not at 30");
  });
}

TEST(EndAgreement, IsWithOneselfWhereThereIsOneRank) {
  on_threads_and_processes(1, [](const std::shared_ptr<Engine>& engine) {
    EndAgreement agreement(engine, {});
    require(go_through(agreement, 4, false).item == 4, "not at 4");
  });
}

TEST(EndAgreement, FailsAllRanksWithTheOneThatFails) {
  on_threads_and_processes(3, [](const std::shared_ptr<Engine>& engine) {
    EndAgreement agreement(engine, {});
    const Ending end = go_through(agreement, engine->info().rank == 2 ? 3 : 100, engine->info().rank == 2, 2);
    require(end.kind == Kind::failed && end.item == 3, "not at 3");
    require(end.failure == Failure{.stage = "map", .process = "rank 2", .item = 3}, "another failure");
    require(end.failed_rank == 2, "another rank");
  });
}

TEST(EndAgreement, IsOnTheLowestOfTheRanksThatFailAtOneItem) {
  on_threads_and_processes(4, [](const std::shared_ptr<Engine>& engine) {
    EndAgreement agreement(engine, {});
    const Ending end = go_through(agreement, 2, engine->info().rank % 2 == 1);
    require(end.kind == Kind::failed && end.failed_rank == 1, "not rank 1's failure");
    require(end.failure->process == "rank 1", "another rank's failure");
  });
}

TEST(EndAgreement, HoldsForOneEpochAfterTheOther) {
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    for (std::int64_t epoch = 0; epoch < 500; ++epoch) {
      EndAgreement agreement(engine, {});
      const std::int64_t items = (epoch + engine->info().rank) % 3;
      const std::int64_t least = std::min(epoch % 3, (epoch + 1) % 3);
      require(go_through(agreement, items, false).item == least, "epoch " + std::to_string(epoch));
    }
  });
}

TEST(EndAgreement, NamesTheRankThatLeftTheEpoch) {
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    if (engine->info().rank == 1) {
      EndAgreement(engine, {}).say({.until = 1});
    } else {
      EndAgreement agreement(engine, {});
      std::string error = "(none)";
      try {
        go_through(agreement, 10, false);
      } catch (const PeerLost& e) {
        error = e.what();
      }
      require(error.starts_with("rank 1 left before item 1 of full_sync: "), error);
    }
    agree(*engine, {}, Deadline::after(std::chrono::seconds(10)), "the test");
  });
}

TEST(EndAgreement, SaysWhomItWaitedForInVain) {
  const auto engines = inproc::make_group(2);
  EndAgreement agreement(engines[0], {.stage = "meet", .timeout = std::chrono::milliseconds(20)});
  engines[1]->post(Status::make("reading", 5, -1, "corpus.jsonl"));
  agreement.say({.until = 8});
  try {
    agreement.await(7);
    FAIL();
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(),
                StartsWith("rank 0 waited 20.0 ms in meet for step 7 from rank 1; rank 1: reading step 5"));
  }
}

TEST(EndAgreement, SaysOnStandardErrorWhomItWaitsForIfThatTakesLong) {
  const auto engines = inproc::make_group(2);
  EndAgreement agreement(engines[0], {.stage = "meet",
                                      .timeout = std::chrono::milliseconds(300),
                                      .remind_after = std::chrono::milliseconds(20),
                                      .poll = [] {}});
  agreement.say({.until = 8});
  ::testing::internal::CaptureStderr();
  EXPECT_THROW(agreement.await(7), Timeout);
  const auto text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, StartsWith("levada: rank 0 waited "));
  EXPECT_THAT(text, HasSubstr(" in meet for step 7 from rank 1; rank 1: has posted nothing; still waiting\n"));
}

TEST(EndAgreement, GivesNoItemThatOthersHaveNotBeenToldOf) {
  const auto engines = inproc::make_group(2);
  EndAgreement ahead(engines[0], {.stage = "meet", .timeout = std::chrono::milliseconds(20)});
  EndAgreement behind(engines[1], {.stage = "meet"});
  behind.say({.until = 100});
  std::int64_t item = 0;
  try {
    for (; item < 100; ++item) {
      ahead.say({.until = item + 1});
      ahead.await(item);
    }
    FAIL() << "there is no end of room for words that nobody takes";
  } catch (const Timeout&) {
  }
  behind.say({.until = 101});
  EXPECT_EQ(behind.await(item - 1).kind, Kind::there);
  EXPECT_EQ(ahead.await(item).kind, Kind::there);
}

TEST(EndAgreement, LetsItsCallerEndAWait) {
  const auto engines = inproc::make_group(2);
  struct Interrupted {};
  EndAgreement agreement(engines[0], {.poll = [] { throw Interrupted{}; }});
  agreement.say({.until = 1});
  EXPECT_THROW(agreement.await(0), Interrupted);
}

TEST(EndAgreement, FindsALostRank) {
  const auto engines = inproc::make_group(2);
  EndAgreement first(engines[0], {}), second(engines[1], {});
  first.say({.until = 1});
  second.say({.until = 1});
  inproc::lose(*engines[1]);
  EXPECT_EQ(first.await(0).kind, Kind::there) << "what it said before holds";
  EXPECT_THROW(first.say({.until = 2}), PeerLost);
}

TEST(EndAgreement, FindsAKilledProcessWithinASecond) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    EndAgreement agreement(engine, {});
    agreement.say({.until = 1});
    agreement.await(0);
    if (engine->info().rank == 1) ::raise(SIGKILL);
    const auto begin = Clock::now();
    try {
      agreement.say({.until = 2});
      agreement.await(1);
    } catch (const PeerLost& lost) {
      require(lost.rank() == 1, "another rank");
      require(Clock::now() - begin < std::chrono::seconds(1), "late");
      throw std::runtime_error("rank 1 was lost");
    }
  };
  const auto error = shm::test::run_forked(2, body, {.memory_bytes = std::size_t{64} << 20});
  EXPECT_THAT(error, HasSubstr("rank 1 was lost"));
}

TEST(Lookahead, CrossesAsBytesAndLiesAreFound) {
  const Failure failure{.stage = "map", .item = 3, .message = "no"};
  for (const Lookahead& lookahead :
       {Lookahead{.until = 5}, Lookahead{.until = 6, .kind = Kind::ended}, Lookahead{7, Kind::failed, failure}}) {
    const Bytes bytes = encode(lookahead);
    EXPECT_EQ(decode<Lookahead>(bytes), lookahead);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      EXPECT_THROW(decode<Lookahead>(ByteView(bytes).first(cut)), CorruptMessage);
    }
  }
  EXPECT_THROW(decode<Lookahead>(encode(Lookahead{.until = -1})), CorruptMessage);
  EXPECT_THROW(decode<Lookahead>(encode(Lookahead{.kind = static_cast<Kind>(4)})), CorruptMessage);
}

}  // namespace
}  // namespace levada::pipeline
