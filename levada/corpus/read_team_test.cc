#include "levada/corpus/read_team.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>
#include <stdexcept>
#include <string>
#include <vector>

namespace levada {
namespace {

TEST(ReadTeam, DoesEachPieceOnce) {
  for (const int size : {1, 2, 5}) {
    ReadTeam team(size);
    for (const std::size_t pieces : {0, 1, 2, 100}) {
      std::vector<std::atomic<int>> done(pieces);
      team.run(pieces, [&](std::size_t piece, std::size_t member) {
        EXPECT_LT(member, static_cast<std::size_t>(size));
        ++done[piece];
      });
      for (const auto& times : done) EXPECT_EQ(times, 1);
    }
  }
}

TEST(ReadTeam, DoesFewPiecesWithManyThreads) {
  ReadTeam team(64);
  for (int time = 0; time < 2000; ++time) {
    std::array<std::atomic<int>, 3> done{};
    team.run(done.size(), [&](std::size_t piece, std::size_t) { ++done[piece]; });
    for (const auto& times : done) EXPECT_EQ(times, 1);
  }
}

TEST(ReadTeam, WorksSideBySide) {
  ReadTeam team(3);
  std::latch all(3);  // Passed only when three pieces are under way at once.
  std::array<std::atomic<int>, 3> members{};
  team.run(3, [&](std::size_t, std::size_t member) {
    ++members[member];
    all.arrive_and_wait();
  });
  for (const auto& times : members) EXPECT_EQ(times, 1);
}

TEST(ReadTeam, ThrowsWhatTheFirstPieceThatFailedThrewAndGoesOn) {
  ReadTeam team(3);
  std::latch all(3);
  try {
    team.run(3, [&](std::size_t piece, std::size_t) {
      all.arrive_and_wait();
      if (piece > 0) throw std::runtime_error(std::to_string(piece));
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "1");
  }
  std::atomic<int> done = 0;
  team.run(50, [&](std::size_t, std::size_t) { ++done; });
  EXPECT_EQ(done, 50);
}

TEST(ReadTeam, BeginsNoPieceBehindAFailure) {
  ReadTeam team(2);
  std::atomic<int> begun = 0;
  EXPECT_THROW(team.run(1'000'000,
                        [&](std::size_t, std::size_t) {
                          ++begun;
                          throw std::runtime_error("broken");
                        }),
               std::runtime_error);
  EXPECT_LE(begun, 2);
}

}  // namespace
}  // namespace levada
