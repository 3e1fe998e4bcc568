#include "levada/tokens/work_team.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>

namespace levada {
namespace {

TEST(WorkTeam, HelpersJoinTheWorkOfAnyThread) {
  WorkTeam team(2);
  for (int time = 0; time < 2; ++time) {
    std::latch all(3);
    std::atomic<int> returned = 0;
    team.run([&] {
      all.arrive_and_wait();
      ++returned;
    });
    EXPECT_EQ(returned, 3) << "it returned before its helpers";
  }
}

TEST(WorkTeam, AHelperJoinsTheWorkWithTheFewestThreads) {
  WorkTeam team;
  std::latch both_begun(2), all(4);
  std::atomic<int> num_calls = 0;
  std::array<std::atomic<int>, 2> threads_at{};
  ThreadGroup threads;
  for (auto& own : threads_at) {
    threads.start("testing", [&] {
      team.run([&] {
        if (num_calls++ >= 4) return;  // A helper may join again.
        if (own++ == 0) both_begun.count_down();
        all.arrive_and_wait();
      });
    });
  }
  both_begun.wait();
  for (int i = 0; i < 2; ++i) threads.start("testing", [&] { team.help(); });
  all.wait();
  team.end();
  threads.join();
  for (const auto& own : threads_at) EXPECT_EQ(own, 2);
}

TEST(WorkTeam, HelpersDoNothingAfterTheEnd) {
  WorkTeam team(2);
  team.end();
  team.help();
  int num_calls = 0;
  team.run([&] { ++num_calls; });
  EXPECT_EQ(num_calls, 1);
}

}  // namespace
}  // namespace levada
