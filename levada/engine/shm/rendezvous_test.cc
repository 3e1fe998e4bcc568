#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/shm/forked_ranks_testing.h"

namespace levada::shm {
namespace {

std::string unique_name(const char* what) {
  return fmt::format("test-{}-{}", what, ::getpid());
}

const Options options{.memory_bytes = 1 << 20, .timeout = std::chrono::seconds(30)};
const Options hasty{.memory_bytes = 1 << 20, .timeout = std::chrono::milliseconds(300)};

TEST(Rendezvous, BringsRanksTogetherInAnyOrder) {
  for (const int late : {0, 1, 3}) {
    const auto name = unique_name("order");
    test::ForkedRanks ranks(4, [&](int rank) {
      if (rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      const auto engine = meet(rank, 4, name, options);
      const auto all =
          agree(*engine, as_bytes(std::to_string(rank)), Deadline::after(std::chrono::seconds(30)), "test");
      if (as_text(all[3]) != "3") throw EngineError("the ranks are mixed up");
    });
    for (const auto& ending : ranks.wait()) EXPECT_EQ(ending.error, "");
  }
}

TEST(Rendezvous, OfOneRankNeedsNobody) {
  EXPECT_EQ(meet(0, 1, unique_name("one"), options)->info().size, 1);
}

TEST(Rendezvous, NamesWhoDoesNotCome) {
  const auto name = unique_name("missing");
  test::ForkedRanks ranks(2, [&](int rank) { static_cast<void>(meet(rank, 3, name, hasty)); });
  const auto endings = ranks.wait();
  EXPECT_NE(endings[0].error.find("rank(s) 2"), std::string::npos) << endings[0].error;
  EXPECT_NE(endings[1].error.find("rank(s) 2"), std::string::npos) << endings[1].error;
}

TEST(Rendezvous, WithoutRankZeroSaysSo) {
  try {
    static_cast<void>(meet(1, 2, unique_name("nobody"), hasty));
    FAIL();
  } catch (const Timeout& error) {
    EXPECT_NE(std::string(error.what()).find("no rank 0"), std::string::npos) << error.what();
  }
}

TEST(Rendezvous, RefusesASecondRankZero) {
  const auto name = unique_name("two");
  test::ForkedRanks ranks(2, [&](int) { static_cast<void>(meet(0, 2, name, hasty)); });
  const auto endings = ranks.wait();
  const bool first = endings[0].error.find("another rank 0") != std::string::npos;
  const bool second = endings[1].error.find("another rank 0") != std::string::npos;
  EXPECT_TRUE(first || second) << endings[0].error << "\n" << endings[1].error;
}

TEST(Rendezvous, RefusesTheSameRankTwiceAndGoesOn) {
  const auto name = unique_name("twice");
  test::ForkedRanks ranks(4, [&](int process) {
    const int rank = process == 3 ? 1 : process;
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    static_cast<void>(meet(rank, 3, name, options));
  });
  const auto endings = ranks.wait();
  EXPECT_EQ(endings[0].error, "");
  EXPECT_EQ(endings[2].error, "");
  const std::string refused = endings[1].error + endings[3].error;
  EXPECT_NE(refused.find("already"), std::string::npos) << refused;
}

TEST(Rendezvous, RefusesAnotherSize) {
  const auto name = unique_name("size");
  test::ForkedRanks ranks(2, [&](int rank) { static_cast<void>(meet(rank, 2 + rank, name, hasty)); });
  for (const auto& ending : ranks.wait()) {
    EXPECT_NE(ending.error.find("same size"), std::string::npos) << ending.error;
  }
}

TEST(Rendezvous, NamesARankThatDiesWhileItWaits) {
  const auto name = unique_name("dies");
  test::ForkedRanks ranks(2, [&](int rank) {
    try {
      static_cast<void>(meet(rank, 3, name, options));
    } catch (const PeerLost& lost) {
      throw EngineError(fmt::format("lost {}", lost.rank()));
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ranks.kill(1);
  EXPECT_EQ(ranks.wait()[0].error, "lost 1");
}

}  // namespace
}  // namespace levada::shm
