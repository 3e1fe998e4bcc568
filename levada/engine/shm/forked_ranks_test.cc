#include "levada/engine/shm/forked_ranks_testing.h"

#include <gtest/gtest.h>

#include <csignal>

#include "levada/base/error.h"

namespace levada::shm::test {
namespace {

TEST(ForkedRanks, ReportWhyTheyFailed) {
  ForkedRanks ranks(3, [](int rank) {
    if (rank == 1) throw InvalidArgument("this one fails");
    if (rank == 2) ::raise(SIGKILL);
  });
  const auto endings = ranks.wait();
  EXPECT_TRUE(endings[0].well);
  EXPECT_EQ(endings[1].error, "this one fails");
  EXPECT_EQ(endings[2].signal, SIGKILL);
}

}  // namespace
}  // namespace levada::shm::test
