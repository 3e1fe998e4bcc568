#include "levada/engine/choice.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <vector>

namespace levada {
namespace {

TEST(ChooseEngine, DependsOnTheNumberOfRanksPerHost) {
  EXPECT_EQ(choose_engine({0}, "c10d"), "shm");
  EXPECT_EQ(choose_engine({0, 0, 0}, "c10d"), "shm");
  EXPECT_EQ(choose_engine({0, 1, 2}, "c10d"), "c10d");
  EXPECT_EQ(choose_engine({0, 1, 0}, "c10d"), "shm+c10d");
  EXPECT_EQ(choose_engine({0, 0, 1}, "mpi"), "shm+mpi");
}

TEST(ChooseEngine, ForwardsIfARankWouldSendToMoreHostsThanTheDegree) {
  std::vector<int> host_of(17);
  std::iota(host_of.begin(), host_of.end(), 0);
  EXPECT_EQ(choose_engine(host_of, "c10d"), "c10d");
  host_of.push_back(17);
  EXPECT_EQ(choose_engine(host_of, "c10d"), "shm+c10d");
  EXPECT_EQ(choose_engine(host_of, "c10d", 17), "c10d");
  EXPECT_EQ(choose_engine({0, 1, 2}, "mpi", 2), "mpi");
  EXPECT_EQ(choose_engine({0, 1, 2}, "mpi", 1), "shm+mpi");
}

std::string describe(std::string name, std::vector<int> host_of, int degree = default_degree) {
  const auto size = static_cast<int>(host_of.size());
  return describe_engine(
      EngineInfo{.name = std::move(name), .rank = 0, .size = size, .host_of = std::move(host_of), .degree = degree});
}

TEST(DescribeEngine, StatesWhereTheRanksAre) {
  EXPECT_EQ(describe("inproc", {0}), "inproc: this is the only rank");
  EXPECT_EQ(describe("shm", {0, 0, 0, 0}), "shm: all 4 ranks are on one host");
  EXPECT_EQ(describe("c10d", {0, 1}), "c10d: 2 ranks on 2 hosts, 1 on each");
  EXPECT_EQ(describe("shm+c10d", {0, 0, 1, 1}), "shm+c10d: 4 ranks on 2 hosts, 2 on each");
  EXPECT_EQ(describe("shm+mpi", {0, 0, 1, 0, 2}), "shm+mpi: 5 ranks on 3 hosts, 1 to 3 on each");
}

TEST(DescribeEngine, StatesThatTheEngineWasRequested) {
  EXPECT_EQ(describe("c10d", {0, 0}), "c10d: all 2 ranks are on one host, as asked");
  EXPECT_EQ(describe("c10d", {0, 0, 1, 1}), "c10d: 4 ranks on 2 hosts, 2 on each, as asked");
  EXPECT_EQ(describe("shm+mpi", {0, 1}), "shm+mpi: 2 ranks on 2 hosts, 1 on each, as asked");
}

TEST(DescribeEngine, OmitsAsAskedIfTheDegreeImpliesTheEngine) {
  EXPECT_EQ(describe("shm+c10d", {0, 1, 2}, 1), "shm+c10d: 3 ranks on 3 hosts, 1 on each");
  EXPECT_EQ(describe("c10d", {0, 1, 2}, 1), "c10d: 3 ranks on 3 hosts, 1 on each, as asked");
}

TEST(DescribeEngine, StatesTheNumberOfLocalRanksBeforeTheyHaveJoined) {
  EXPECT_EQ(describe_engine("shm", 4, 4), "shm: all 4 ranks are on one host");
  EXPECT_EQ(describe_engine("shm+c10d", 4, 2), "shm+c10d: 2 of 4 ranks are on this host");
}

TEST(LogEngine, WritesOneLineOnRankZeroIfRequested) {
  const auto logged = [](int rank, const char* level) {
    ::setenv("LEVADA_LOG", level, 1);
    testing::internal::CaptureStderr();
    log_engine({.name = "shm", .rank = rank, .size = 2, .host_of = {0, 0}});
    ::unsetenv("LEVADA_LOG");
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(logged(0, "info"), "levada: engine shm: all 2 ranks are on one host\n");
  EXPECT_EQ(logged(1, "info"), "");
  EXPECT_EQ(logged(0, ""), "");
  EXPECT_EQ(logged(0, "debug"), "levada: LEVADA_LOG is 'debug'; set it to info, or unset it\n");
}

}  // namespace
}  // namespace levada
