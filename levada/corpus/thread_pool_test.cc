#include "levada/corpus/thread_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/forked_testing.h"

namespace levada {
namespace {

TEST(ThreadPool, RunsEachPieceOnce) {
  for (const int size : {1, 2, 5}) {
    ThreadPool pool(size, "testing");
    for (const std::size_t pieces : {0, 1, 2, 100}) {
      std::vector<std::atomic<int>> done(pieces);
      pool.run(pieces, [&](std::size_t piece, std::size_t member) {
        EXPECT_LT(member, static_cast<std::size_t>(size));
        ++done[piece];
      });
      for (const auto& times : done) EXPECT_EQ(times, 1);
    }
  }
}

TEST(ThreadPool, RunsFewPiecesWithManyThreads) {
  ThreadPool pool(64, "testing");
  for (int time = 0; time < 2000; ++time) {
    std::array<std::atomic<int>, 3> done{};
    pool.run(done.size(), [&](std::size_t piece, std::size_t) { ++done[piece]; });
    for (const auto& times : done) EXPECT_EQ(times, 1);
  }
}

TEST(ThreadPool, RunsPiecesConcurrently) {
  ThreadPool pool(3, "testing");
  std::latch all(3);  // passes only if three pieces are in progress at once
  std::array<std::atomic<int>, 3> members{};
  pool.run(3, [&](std::size_t, std::size_t member) {
    ++members[member];
    all.arrive_and_wait();
  });
  for (const auto& times : members) EXPECT_EQ(times, 1);
}

TEST(ThreadPool, RethrowsTheFirstExceptionAndStaysUsable) {
  ThreadPool pool(3, "testing");
  std::latch all(3);
  try {
    pool.run(3, [&](std::size_t piece, std::size_t) {
      all.arrive_and_wait();
      if (piece > 0) throw std::runtime_error(std::to_string(piece));
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "1");
  }
  std::atomic<int> done = 0;
  pool.run(50, [&](std::size_t, std::size_t) { ++done; });
  EXPECT_EQ(done, 50);
}

TEST(ThreadPool, StartsNoPieceAfterAFailure) {
  ThreadPool pool(2, "testing");
  std::atomic<int> begun = 0;
  EXPECT_THROW(pool.run(1'000'000,
                        [&](std::size_t, std::size_t) {
                          ++begun;
                          throw std::runtime_error("broken");
                        }),
               std::runtime_error);
  EXPECT_LE(begun, 2);
}

TEST(ThreadPool, RunsAndIsDestroyedInAForkedProcess) {
  auto pool = std::make_unique<ThreadPool>(3, "testing");
  const auto run = [&] {
    std::atomic<int> done = 0;
    pool->run(50, [&](std::size_t, std::size_t) { ++done; });
    return done == 50;
  };
  EXPECT_TRUE(run());
  EXPECT_EQ(in_forked_process([&] {
              if (!run()) return 1;
              pool.reset();
              return 0;
            }),
            0);
  EXPECT_TRUE(run());
}

// A sanitizer ends a process that cannot allocate.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ThreadPool, RunsWithTheThreadsThatTheSystemAllows) {
  EXPECT_EQ(with_room_for_threads(2,
                                  [] {
                                    ThreadPool pool(100, "testing");
                                    std::latch two(2);
                                    std::atomic<int> done = 0;
                                    for (int time = 0; time < 3; ++time) {
                                      pool.run(1000, [&](std::size_t piece, std::size_t) {
                                        if (time == 0 && piece < 2) two.arrive_and_wait();
                                        ++done;
                                      });
                                    }
                                    return done == 3000 ? 0 : 1;
                                  }),
            0);
}

TEST(ThreadPool, NamesItsPurposeIfTheSystemAllowsNoThread) {
  EXPECT_EQ(with_room_for_threads(
                0,
                [] {
                  ThreadPool pool(100, "opening files");
                  for (int time = 0; time < 2; ++time) {
                    try {
                      pool.run(2, [](std::size_t, std::size_t) {});
                      return 1;
                    } catch (const EngineError& error) {
                      if (!std::string(error.what()).starts_with("cannot start a thread for opening files: ")) return 2;
                    }
                  }
                  return 0;
                }),
            0);
}
#endif

}  // namespace
}  // namespace levada
