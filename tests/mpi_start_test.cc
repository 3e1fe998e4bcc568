// How MPI programs start and end: the errors and the state of MPI that they see.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/command_run.h"

namespace levada::test {
namespace {

Outcome run_ranks(int ranks, const std::string& name, const Variables& variables = {}) {
  return Command({MPIEXEC, "-n", std::to_string(ranks), MPI_PROGRAM, name}, variables, MPIRUN).wait();
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(MpiStart, WithFewerThreadsIsRefusedOnEveryRankWithTheRemedy) {
  const Outcome outcome = run_ranks(3, "funneled");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(count(outcome.out,
                  "Unsupported: MPI provides MPI_THREAD_FUNNELED on rank 0, but the engine mpi needs "
                  "MPI_THREAD_MULTIPLE, because its own thread calls MPI: initialize MPI by MPI_Init_thread(&argc, "
                  "&argv, MPI_THREAD_MULTIPLE, &provided), with an MPI library that was built with threads\n"),
            3)
      << outcome.out;
}

TEST(MpiStart, BeforeMpiIsInitializedIsRefusedWithTheRemedy) {
  const Outcome outcome = Command({"uninitialized"}, {}, MPI_PROGRAM).wait();
  EXPECT_EQ(outcome.out,
            "InvalidArgument: MPI is not initialized; call MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, "
            "&provided) before constructing levada::mpi::Communicator\n");
}

TEST(MpiStart, AfterMpiIsFinalizedIsRefused) {
  EXPECT_EQ(Command({"finalized"}, {}, MPI_PROGRAM).wait().out,
            "InvalidArgument: MPI is finalized; construct and destroy levada::mpi::Communicator before "
            "MPI_Finalize()\nfinalized\n");
}

TEST(MpiStart, ByTheLauncherOfAnotherMpiIsRefusedWithTheRemedy) {
  const Outcome outcome = Command({"alone"}, {{"PMI_SIZE", "4"}}, MPI_PROGRAM).wait();
  EXPECT_EQ(count(outcome.out,
                  "Unsupported: the launcher has started 4 ranks (PMI_SIZE=4), but MPI_COMM_WORLD has "
                  "one: start the program with the mpirun, or the srun --mpi=, of the MPI that it is "
                  "linked with, which is "),
            1)
      << outcome.out << outcome.err;
}

TEST(MpiStart, ByALauncherOfNoMpiIsRefused) {
  const Outcome outcome = Command({"alone"}, {{"WORLD_SIZE", "4"}}, MPI_PROGRAM).wait();
  EXPECT_EQ(count(outcome.out, "the launcher has started 4 ranks (WORLD_SIZE=4), but MPI_COMM_WORLD has one"), 1)
      << outcome.out << outcome.err;
}

TEST(MpiStart, OfOneRankByALauncherOfMpiIsAWorldOfOneWhateverStartedTheLauncher) {
  EXPECT_EQ(Command({"alone"}, {{"PMI_SIZE", "1"}, {"WORLD_SIZE", "4"}}, MPI_PROGRAM).wait().out, "finalized\n");
}

TEST(MpiStart, WithAnInvalidSilenceIsRefused) {
  for (const char* const text : {"2", "-1", "ten", "10s", "98300"}) {
    EXPECT_EQ(Command({"funneled"}, {{"LEVADA_SILENCE", text}}, MPI_PROGRAM).wait().out,
              "InvalidArgument: LEVADA_SILENCE of rank 0 must be a number of seconds from 3 to 86400, or 0 for no "
              "limit\nfinalized\n");
  }
}

TEST(MpiJob, InitializesAndFinalizesMpi) {
  const Outcome outcome = run_ranks(3, "join");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(count(outcome.out, "shm: all 3 ranks are on one host\n"), 1) << outcome.out;
  EXPECT_EQ(count(outcome.out, "finalized"), 3) << outcome.out;
}

TEST(MpiJob, LeavesMpiToAProgramThatHasInitializedIt) {
  const Outcome outcome = run_ranks(2, "join_initialized");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(count(outcome.out, "initialized"), 2) << outcome.out;
  EXPECT_EQ(count(outcome.out, "finalized"), 2) << outcome.out;
}

TEST(MpiJob, OfOneHostNeedsNoThreadsInMpi) {
  const Outcome outcome = run_ranks(2, "join_funneled");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(count(outcome.out, "shm: all 2 ranks are on one host\n"), 1) << outcome.out;
}

TEST(MpiStart, TreatsRanksInOtherNetworkNamespacesAsOtherHosts) {
  const Outcome outcome = run_ranks(3, "hosts", {{"LEVADA_SILENCE", "0"}});
  EXPECT_EQ(count(outcome.out, count(outcome.out, "not root") == 0 ? "hosts 0 1 2\n" : "hosts 0 0 0\n"), 1)
      << outcome.out << outcome.err;
}

TEST(MpiStart, OnHostsWithoutANetworkBetweenThemIsRefusedOnEveryRankWithTheRemedy) {
  const Outcome outcome = run_ranks(3, "hosts");
  const int refused = count(outcome.out, "not root") == 0 ? 3 : 0;  // only root can create namespaces
  EXPECT_EQ(count(outcome.out, "cannot connect to rank 1: that rank's host has no network address"), refused)
      << outcome.out << outcome.err;
  EXPECT_EQ(count(outcome.out, "or set LEVADA_SILENCE=0 on rank 0 to do without"), refused);
}

TEST(MpiEnd, WaitsForRanksThatContinue) {
  const Outcome outcome = run_ranks(4, "leave");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(count(outcome.out, "finalized"), 4);
}

TEST(MpiEnd, OfACommunicatorWhoseEngineIsInUseEndsTheJobWithTheRemedy) {
  const Outcome outcome = run_ranks(2, "keep");
  EXPECT_NE(outcome.status, 0);
  EXPECT_GE(
      count(outcome.err + outcome.out,
            "destroys its levada::mpi::Communicator or Job while an engine over it is in use; destroy the engine, its "
            "channels and leases first"),
      1)
      << outcome.err;
}

TEST(MpiEnd, OfAKilledRankEndsTheJob) {
  const Outcome outcome = run_ranks(3, "kill");
  EXPECT_NE(outcome.status, 0);
  EXPECT_EQ(count(outcome.out, "finalized"), 0);
}

}  // namespace
}  // namespace levada::test
