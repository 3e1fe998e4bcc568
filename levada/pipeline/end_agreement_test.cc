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
using Kind = Foresight::Kind;

/// Goes through `items` items of this rank's, after which it ends or, where `fails`, throws; gives how it ended.
Foresight go_through(EndAgreement& agreement, std::int64_t items, bool fails) {
  for (std::int64_t item = 0;; ++item) {
    Foresight mine{.item = item};
    if (item == items) mine.kind = fails ? Kind::failed : Kind::ended;
    if (item == items && fails) {
      mine.failure = Failure{.stage = "map", .process = "rank " + std::to_string(agreement.rank()), .item = item};
    }
    agreement.say(mine);
    const Foresight all = agreement.await();
    if (all.kind != Kind::there) return all;
  }
}

TEST(EndAgreement, EndsAllRanksWithTheShortest) {
  on_threads_and_processes(3, [](const std::shared_ptr<Engine>& engine) {
    const std::vector<std::int64_t> items = {7, 5, 300};
    EndAgreement agreement(engine, {});
    const Foresight end = go_through(agreement, items[static_cast<std::size_t>(engine->info().rank)], false);
    require(end == Foresight{.item = 5, .kind = Kind::ended}, "not at 5");
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
    const Foresight end = go_through(agreement, engine->info().rank == 2 ? 3 : 100, engine->info().rank == 2);
    require(end.kind == Kind::failed && end.item == 3, "not at 3");
    require(end.failure == Failure{.stage = "map", .process = "rank 2", .item = 3}, "another failure");
    require(agreement.failed_rank() == 2, "another rank");
  });
}

TEST(EndAgreement, IsOnTheLowestOfTheRanksThatFailAtOneItem) {
  on_threads_and_processes(4, [](const std::shared_ptr<Engine>& engine) {
    EndAgreement agreement(engine, {});
    const Foresight end = go_through(agreement, 2, engine->info().rank % 2 == 1);
    require(end.kind == Kind::failed && agreement.failed_rank() == 1, "not rank 1's failure");
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
      EndAgreement(engine, {}).say({.item = 0});
    } else {
      EndAgreement agreement(engine, {});
      std::string error = "(none)";
      try {
        go_through(agreement, 10, false);
      } catch (const EngineError& e) {
        error = e.what();
      }
      require(error.starts_with("rank 1 left full_sync before item 1: "), error);
    }
    agree(*engine, {}, Deadline::after(std::chrono::seconds(10)), "the test");
  });
}

TEST(EndAgreement, TakesNobodyWhoIsElsewhereInTheEpoch) {
  on_threads_and_processes(2, [](const std::shared_ptr<Engine>& engine) {
    EndAgreement agreement(engine, {});
    agreement.say({.item = 3 + engine->info().rank});
    try {
      agreement.await();
      require(false, "items 3 and 4 were taken for one");
    } catch (const InvalidArgument& error) {
      require(std::string(error.what()).find("ranks go on together from states that were saved together") !=
                  std::string::npos,
              error.what());
    }
    agree(*engine, {}, Deadline::after(std::chrono::seconds(10)), "the test");
  });
}

TEST(EndAgreement, SaysWhomItWaitedForInVain) {
  const auto engines = inproc::make_group(2);
  EndAgreement agreement(engines[0], {.stage = "meet", .timeout = std::chrono::milliseconds(20)});
  engines[1]->post(Status::make("reading", 5, -1, "corpus.jsonl"));
  agreement.say({.item = 7});
  try {
    agreement.await();
    FAIL();
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(),
                StartsWith("rank 0 waited 20.0 ms in meet for step 7 from rank 1; rank 1: reading step 5"));
  }
}

TEST(EndAgreement, LetsItsCallerEndAWait) {
  const auto engines = inproc::make_group(2);
  struct Interrupted {};
  EndAgreement agreement(engines[0], {.poll = [] { throw Interrupted{}; }});
  agreement.say({.item = 0});
  EXPECT_THROW(agreement.await(), Interrupted);
}

TEST(EndAgreement, FindsALostRank) {
  const auto engines = inproc::make_group(2);
  EndAgreement first(engines[0], {}), second(engines[1], {});
  first.say({.item = 0});
  second.say({.item = 0});
  inproc::lose(*engines[1]);
  EXPECT_EQ(first.await(), (Foresight{.item = 0})) << "what it said before holds";
  EXPECT_THROW(first.say({.item = 1}), PeerLost);
}

TEST(EndAgreement, FindsAKilledProcessWithinASecond) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    EndAgreement agreement(engine, {});
    agreement.say({.item = 0});
    agreement.await();
    if (engine->info().rank == 1) ::raise(SIGKILL);
    const auto begin = Clock::now();
    try {
      agreement.say({.item = 1});
      agreement.await();
    } catch (const PeerLost& lost) {
      require(lost.rank() == 1, "another rank");
      require(Clock::now() - begin < std::chrono::seconds(1), "late");
      throw std::runtime_error("rank 1 was lost");
    }
  };
  const auto error = shm::test::run_forked(2, body, {.memory_bytes = std::size_t{64} << 20});
  EXPECT_THAT(error, HasSubstr("rank 1 was lost"));
}

TEST(Foresight, CrossesAsBytesAndLiesAreFound) {
  const Failure failure{.stage = "map", .item = 3, .message = "no"};
  for (const Foresight& foresight :
       {Foresight{.item = 5}, Foresight{.item = 6, .kind = Kind::ended}, Foresight{7, Kind::failed, failure}}) {
    const Bytes bytes = encode(foresight);
    EXPECT_EQ(decode_foresight(bytes), foresight);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      EXPECT_THROW(decode_foresight(ByteView(bytes).first(cut)), CorruptMessage);
    }
  }
  EXPECT_THROW(decode_foresight(encode({.item = -1})), CorruptMessage);
  EXPECT_THROW(decode_foresight(encode({.kind = static_cast<Kind>(4)})), CorruptMessage);
}

}  // namespace
}  // namespace levada::pipeline
