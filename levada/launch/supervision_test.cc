#include "levada/launch/supervision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace levada::launch {
namespace {

constexpr int exited(int status) {
  return status << 8;
}
constexpr int killed(int signal) {
  return signal;
}

TEST(Supervision, EndsWhenEveryRankHasEnded) {
  Supervision job(2);
  job.apply(Supervision::Ended{1, exited(0)});
  EXPECT_FALSE(job.all_ended());
  EXPECT_FALSE(job.is_ending());
  job.apply(Supervision::Ended{0, exited(0)});
  EXPECT_TRUE(job.all_ended());
  EXPECT_EQ(job.result().exit_status, 0);
  EXPECT_EQ(job.result().message, "");
}

TEST(Supervision, NamesTheKilledRankRatherThanRanksThatLostIt) {
  Supervision job(2);
  job.apply(Supervision::Reported{0, ErrorKind::peer_lost, "rank 1 was lost"});
  EXPECT_TRUE(job.is_ending());
  job.apply(Supervision::Ended{0, exited(1)});
  job.apply(Supervision::Ended{1, killed(SIGKILL)});
  EXPECT_EQ(job.result().exit_status, 1);
  EXPECT_EQ(job.result().first_failed, 1);
  EXPECT_THAT(job.result().message, ::testing::StartsWith("rank 1 was lost: killed by signal 9 (Killed)"));
}

TEST(Supervision, DoesNotBlameARankThatItKilled) {
  Supervision job(3);
  job.apply(Supervision::Reported{0, ErrorKind::source, "corpus.jsonl:3: not JSON"});
  job.apply(Supervision::Ended{0, exited(1)});
  job.apply(Supervision::Killed{});
  job.apply(Supervision::Ended{2, killed(SIGKILL)});
  job.apply(Supervision::Ended{1, killed(SIGKILL)});
  EXPECT_EQ(job.result().message, "corpus.jsonl:3: not JSON");
  EXPECT_EQ(job.result().first_failed, 0);
}

TEST(Supervision, ReportsAnErrorRatherThanTheLossesItCaused) {
  Supervision job(2);
  job.apply(Supervision::Reported{1, ErrorKind::peer_lost, "rank 0 was lost"});
  job.apply(Supervision::Reported{0, ErrorKind::invalid_argument, "no memory"});
  job.apply(Supervision::Ended{1, exited(1)});
  job.apply(Supervision::Ended{0, exited(2)});
  EXPECT_EQ(job.result().message, "no memory");
  EXPECT_EQ(job.result().exit_status, 2);
}

TEST(Supervision, KeepsTheStatusOfAReportedErrorIfItsRankIsKilled) {
  for (const auto kind : {ErrorKind::invalid_argument, ErrorKind::source}) {
    Supervision job(1);
    job.apply(Supervision::Reported{0, kind, "no"});
    job.apply(Supervision::Killed{});
    job.apply(Supervision::Ended{0, killed(SIGKILL)});
    EXPECT_EQ(job.result().exit_status, kind == ErrorKind::invalid_argument ? 2 : 1);
  }
}

TEST(Supervision, NamesARankThatFailedWithoutAReport) {
  Supervision job(2);
  job.apply(Supervision::Reported{0, ErrorKind::peer_lost, "rank 1 was lost"});
  job.apply(Supervision::Ended{1, exited(3)});
  job.apply(Supervision::Ended{0, exited(1)});
  EXPECT_EQ(job.result().message, "rank 1 ended with status 3");
  EXPECT_EQ(job.result().exit_status, 3);
}

TEST(Supervision, ReportsALossIfNothingElseIsKnown) {
  Supervision job(2);
  job.apply(Supervision::Reported{0, ErrorKind::peer_lost, "rank 1 was lost"});
  job.apply(Supervision::Killed{});
  job.apply(Supervision::Ended{1, killed(SIGKILL)});
  job.apply(Supervision::Ended{0, exited(1)});
  EXPECT_EQ(job.result().message, "rank 1 was lost");
  EXPECT_EQ(job.result().exit_status, 1);
}

TEST(Supervision, EndsQuietlyOnASignal) {
  Supervision job(2);
  job.apply(Supervision::Signalled{SIGINT});
  EXPECT_TRUE(job.is_ending());
  EXPECT_EQ(job.signal(), SIGINT);
  job.apply(Supervision::Ended{0, exited(130)});
  job.apply(Supervision::Ended{1, killed(SIGINT)});
  EXPECT_EQ(job.result().exit_status, 130);
  EXPECT_EQ(job.result().message, "");
}

TEST(Supervision, EndsQuietlyIfItsOutputIsClosed) {
  Supervision job(1);
  job.apply(Supervision::Ended{0, killed(SIGPIPE)});
  EXPECT_EQ(job.result().exit_status, 141);
  EXPECT_EQ(job.result().message, "");
}

}  // namespace
}  // namespace levada::launch
