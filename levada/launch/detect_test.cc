#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <map>

#include "levada/launch/launch.h"

namespace levada::launch {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<Environment> detect_in(const Variables& variables) {
  return detect([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal_of(const Variables& variables) {
  try {
    detect_in(variables);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

const Variables torchrun = {{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"MASTER_PORT", "29500"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"TORCHELASTIC_RUN_ID", "abc"}};

TEST(Detect, FindsNoJobInAnEmptyEnvironment) {
  EXPECT_FALSE(detect_in({}));
}

TEST(Detect, RejectsAnIncompleteSetNamingTheMissingVariable) {
  EXPECT_EQ(
      refusal_of({{"RANK", "0"}}),
      "the environment describes an incomplete job: RANK is 0, but WORLD_SIZE is not set; set both, or unset RANK");
  EXPECT_EQ(refusal_of({{"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}}),
            "the environment describes an incomplete job: WORLD_SIZE is 4, but RANK is not set; set both, or unset "
            "WORLD_SIZE");
  const std::vector<std::pair<Variables, const char*>> halves = {
      {{{"RANK", ""}, {"WORLD_SIZE", "4"}}, "RANK is not set"},
      {{{"LOCAL_RANK", "1"}}, "RANK is not set"},
      {{{"LEVADA_RANK", "1"}}, "LEVADA_WORLD_SIZE is not set"},
      {{{"LEVADA_WORLD_SIZE", "2"}}, "LEVADA_RANK is not set"},
      {{{"LEVADA_LOCAL_RANK", "1"}}, "LEVADA_RANK is not set"},
      {{{"OMPI_COMM_WORLD_RANK", "1"}}, "OMPI_COMM_WORLD_SIZE is not set"},
      {{{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK is not set"},
      {{{"PMI_RANK", "1"}}, "PMI_SIZE is not set"},
      {{{"PMI_SIZE", "2"}}, "PMI_RANK is not set"},
      {{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}}, "SLURM_NTASKS is not set"},
      {{{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}}, "SLURM_PROCID is not set"}};
  for (const auto& [variables, missing] : halves) EXPECT_THAT(refusal_of(variables), testing::HasSubstr(missing));
}

TEST(Detect, FindsNoJobInAnIncompleteSetOfASingleProcess) {
  EXPECT_FALSE(detect_in({{"WORLD_SIZE", "1"}}));
  EXPECT_FALSE(detect_in({{"LOCAL_RANK", "0"}}));
  EXPECT_FALSE(detect_in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}));  // a batch script
}

TEST(Detect, AcceptsAnIncompleteSetThatAgreesWithTheLauncher) {
  const Variables step = {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}};
  for (const auto& [name, value] : Variables{{"RANK", "1"}, {"WORLD_SIZE", "2"}}) {
    auto with = step;
    with[name] = value;
    EXPECT_EQ(detect_in(with)->size, 2);
    with[name] = "3";
    EXPECT_THAT(refusal_of(with), testing::HasSubstr("incomplete job"));
  }
}

const Variables started_here = {
    {"LEVADA_RANK", "1"}, {"LEVADA_WORLD_SIZE", "2"}, {"LEVADA_LINKS", "7"},     {"RANK", "1"},
    {"WORLD_SIZE", "2"},  {"LOCAL_RANK", "1"},        {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"},
    {"MASTER_PORT", "4"}};

TEST(Detect, PrefersLevadasVariablesToTorchrunsOfTheSameRank) {
  EXPECT_EQ(detect_in(started_here)->source, "LEVADA_RANK and LEVADA_WORLD_SIZE");
  EXPECT_EQ(detect_in(started_here)->rank, 1);
  auto other_port = started_here;  // a program that sets MASTER_PORT itself is still the rank
  other_port["MASTER_PORT"] = "29500";
  EXPECT_EQ(detect_in(other_port)->source, "LEVADA_RANK and LEVADA_WORLD_SIZE");
}

TEST(Detect, PrefersTorchrunsVariablesInAProcessThatItStartsWithinARank) {
  auto within = started_here;
  for (const auto& [name, value] : torchrun) within[name] = value;
  EXPECT_EQ(detect_in(within)->source, "RANK and WORLD_SIZE");
  EXPECT_EQ(detect_in(within)->rank, 5);
}

TEST(Detect, RejectsVariablesOfTwoJobs) {
  auto changed = started_here;
  changed["RANK"] = "0";
  EXPECT_EQ(
      refusal_of(changed),
      "the environment contradicts itself: LEVADA_RANK and LEVADA_WORLD_SIZE are 1 and 2, but RANK and WORLD_SIZE "
      "are 0 and 2; in a process that another launcher starts, unset LEVADA_RANK, LEVADA_WORLD_SIZE and "
      "LEVADA_LINKS");
}

TEST(Detect, PrefersLevadasVariablesThatAreSetByHand) {
  auto by_hand = torchrun;
  by_hand["LEVADA_RANK"] = "0";
  by_hand["LEVADA_WORLD_SIZE"] = "2";
  EXPECT_EQ(detect_in(by_hand)->size, 2);
}

TEST(Detect, ReadsLevadasOwnVariables) {
  const auto job = detect_in({{"LEVADA_RANK", "2"}, {"LEVADA_WORLD_SIZE", "4"}});
  EXPECT_EQ(job, (Environment{2, 4, {}, {}, "LEVADA_RANK and LEVADA_WORLD_SIZE", "", ""}));
}

TEST(Detect, ReadsTorchrun) {
  EXPECT_EQ(detect_in(torchrun), (Environment{5, 8, 1, 4, "RANK and WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                              "MASTER_PORT=29500 TORCHELASTIC_RUN_ID=abc"}));
}

TEST(Detect, LeavesTheLocalSizeEmptyIfNoVariableHasIt) {
  EXPECT_EQ(detect_in({{"RANK", "1"}, {"WORLD_SIZE", "2"}}),
            (Environment{1, 2, {}, {}, "RANK and WORLD_SIZE", "", ""}));
  EXPECT_EQ(detect_in({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}})->local_size,
            std::nullopt);
}

TEST(Detect, ReadsTheLocalSizeOfDeepSpeedsLauncher) {
  EXPECT_EQ(detect_in({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_SIZE", "4"}})->local_size, 4);
}

TEST(Detect, AcceptsALocalSizeWithoutALocalRank) {
  EXPECT_EQ(detect_in({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_SIZE", "2"}}),
            (Environment{2, 4, {}, 2, "RANK and WORLD_SIZE", "LOCAL_SIZE", ""}));
  EXPECT_EQ(detect_in({{"LEVADA_RANK", "3"}, {"LEVADA_WORLD_SIZE", "4"}, {"LEVADA_LOCAL_WORLD_SIZE", "2"}}),
            (Environment{3, 4, {}, 2, "LEVADA_RANK and LEVADA_WORLD_SIZE", "LEVADA_LOCAL_WORLD_SIZE", ""}));
  const Variables step = {{"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "3"},
                          {"SLURM_STEP_NUM_TASKS", "4"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                          {"SLURM_NODEID", "1"}};
  EXPECT_EQ(detect_in(step),
            (Environment{3, 4, {}, 2, "SLURM_PROCID and SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", ""}));
}

TEST(Detect, KeepsLocalRankIfTheLauncherHasNone) {
  EXPECT_EQ(detect_in({{"RANK", "3"},
                       {"WORLD_SIZE", "4"},
                       {"LOCAL_RANK", "1"},
                       {"OMPI_COMM_WORLD_RANK", "3"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
            (Environment{3, 4, 1, 2, "RANK and WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", ""}));
}

TEST(Detect, DistinguishesJobsWithDifferentMasters) {
  auto other = torchrun;
  other["MASTER_ADDR"] = "node7";
  EXPECT_EQ(detect_in(other)->rendezvous, "MASTER_PORT=29500 MASTER_ADDR=node7 TORCHELASTIC_RUN_ID=abc");
}

TEST(Detect, DistinguishesARestartedTorchrunJob) {
  auto again = torchrun;
  again["TORCHELASTIC_RESTART_COUNT"] = "1";
  EXPECT_NE(detect_in(again)->rendezvous, detect_in(torchrun)->rendezvous);
}

TEST(Detect, ReadsASlurmStepOnSeveralNodes) {
  const auto job = detect_in({{"SLURM_JOB_ID", "77"},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_PROCID", "9"},
                              {"SLURM_STEP_NUM_TASKS", "11"},
                              {"SLURM_NTASKS", "64"},
                              {"SLURM_LOCALID", "1"},
                              {"SLURM_NODEID", "2"},
                              {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}});
  EXPECT_EQ(job, (Environment{9, 11, 1, 3, "SLURM_PROCID and SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE",
                              "SLURM_JOB_ID=77 SLURM_STEP_ID=0"}));
}

TEST(Detect, FindsNoJobInASlurmBatchScript) {
  EXPECT_FALSE(detect_in({{"SLURM_JOB_ID", "77"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}));
}

TEST(Detect, ReadsOpenMpi) {
  const auto job = detect_in({{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "prterun-1@1"}});
  EXPECT_EQ(job, (Environment{1, 2, 1, 2, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                              "PMIX_NAMESPACE=prterun-1@1"}));
}

TEST(Detect, ReadsPmi) {
  const auto job =
      detect_in({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(job, (Environment{3, 4, 1, 2, "PMI_RANK and PMI_SIZE", "MPI_LOCALNRANKS", ""}));
  EXPECT_EQ(detect_in({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "2"}}),
            (Environment{3, 4, 1, 2, "PMI_RANK and PMI_SIZE", "PMI_LOCAL_SIZE", ""}));
}

TEST(Detect, CompletesRankAndWorldSizeFromTheirLauncher) {
  const Variables from_slurm = {{"RANK", "2"},          {"WORLD_SIZE", "4"},
                                {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"},
                                {"SLURM_PROCID", "2"},  {"SLURM_STEP_NUM_TASKS", "4"},
                                {"SLURM_LOCALID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                                {"SLURM_NODEID", "1"}};
  EXPECT_EQ(detect_in(from_slurm), (Environment{2, 4, 0, 2, "RANK and WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE",
                                                "SLURM_JOB_ID=77 SLURM_STEP_ID=0"}));
  auto with_port = from_slurm;
  with_port["MASTER_PORT"] = "29500";
  EXPECT_EQ(detect_in(with_port)->rendezvous, "MASTER_PORT=29500");
  EXPECT_EQ(detect_in({{"RANK", "1"},
                       {"WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})
                ->local_size,
            2);
}

TEST(Detect, DoesNotCompleteRankAndWorldSizeFromAnUnrelatedLauncher) {
  const Variables outer = {{"RANK", "1"},         {"WORLD_SIZE", "4"},   {"SLURM_STEP_ID", "0"},
                           {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_TASKS_PER_NODE", "1(x2)"},
                           {"SLURM_NODEID", "1"}, {"SLURM_LOCALID", "0"}};
  EXPECT_EQ(detect_in(outer)->local_size, std::nullopt);
}

TEST(Detect, PrefersTheInnermostLauncher) {
  auto both = torchrun;
  both.insert({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  EXPECT_EQ(detect_in(both)->source, "RANK and WORLD_SIZE");
  both.insert({{"LEVADA_RANK", "0"}, {"LEVADA_WORLD_SIZE", "2"}});
  EXPECT_EQ(detect_in(both)->source, "LEVADA_RANK and LEVADA_WORLD_SIZE");
}

TEST(Detect, RejectsARankBeyondTheWorldSizeNamingBothVariables) {
  EXPECT_THAT(refusal_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}}),
              ::testing::AllOf(::testing::HasSubstr("RANK is 4"), ::testing::HasSubstr("WORLD_SIZE is 4")));
}

TEST(Detect, RejectsALocalRankBeyondTheLocalSize) {
  auto wrong = torchrun;
  wrong["LOCAL_RANK"] = "4";
  EXPECT_THAT(refusal_of(wrong), ::testing::HasSubstr("LOCAL_RANK is 4, but LOCAL_WORLD_SIZE is 4"));
}

TEST(Detect, RejectsALocalSizeBeyondTheWorldSize) {
  auto wrong = torchrun;
  wrong["LOCAL_WORLD_SIZE"] = "16";
  EXPECT_THAT(refusal_of(wrong), ::testing::HasSubstr("LOCAL_WORLD_SIZE is 16, but WORLD_SIZE is 8"));
}

TEST(Detect, RejectsValuesThatAreNotNumbers) {
  EXPECT_THAT(refusal_of({{"RANK", "one"}, {"WORLD_SIZE", "4"}}), ::testing::HasSubstr("RANK is 'one'"));
  EXPECT_THAT(refusal_of({{"RANK", "-1"}, {"WORLD_SIZE", "4"}}), ::testing::HasSubstr("RANK is '-1'"));
  EXPECT_THAT(refusal_of({{"RANK", "0"}, {"WORLD_SIZE", "4x"}}), ::testing::HasSubstr("WORLD_SIZE is '4x'"));
}

TEST(Detect, RejectsASlurmTaskListWithoutThisNode) {
  const auto refusal = refusal_of({{"SLURM_STEP_ID", "0"},
                                   {"SLURM_PROCID", "0"},
                                   {"SLURM_NTASKS", "4"},
                                   {"SLURM_NODEID", "3"},
                                   {"SLURM_TASKS_PER_NODE", "2(x2)"}});
  EXPECT_THAT(refusal, ::testing::HasSubstr("SLURM_TASKS_PER_NODE is '2(x2)'"));
}

/// Returns the error of join() in this process with these variables.
std::string join_error(const Variables& variables, const JoinOptions& options = {}) {
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  std::string text;
  try {
    join(options);
  } catch (const Unsupported& error) {
    text = error.what();
  } catch (const Timeout& error) {
    text = std::string("Timeout: ") + error.what();
  } catch (const InvalidArgument& error) {
    text = std::string("InvalidArgument: ") + error.what();
  }
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  return text;
}

TEST(Join, ImmediatelyRejectsRanksOfOtherHostsNamingTheRemedy) {
  const std::string remedy =
      "to join ranks of several hosts, initialize torch.distributed first (in Python) or call levada::mpi::join() (in "
      "C++)";
  for (const int rank : {0, 1, 2, 3}) {
    const auto number = std::to_string(rank);
    EXPECT_EQ(join_error({{"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", number},
                          {"SLURM_STEP_NUM_TASKS", "4"},
                          {"SLURM_LOCALID", std::to_string(rank % 2)},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                          {"SLURM_NODEID", std::to_string(rank / 2)}}),
              "rank " + number + " is one of 4, but SLURM_STEP_TASKS_PER_NODE gives this host only 2; " + remedy);
    EXPECT_EQ(join_error({{"OMPI_COMM_WORLD_RANK", number},
                          {"OMPI_COMM_WORLD_SIZE", "4"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}),
              "rank " + number + " is one of 4, but OMPI_COMM_WORLD_LOCAL_SIZE gives this host only 1; " + remedy);
  }
}

TEST(Join, NamesTheCallForAnEngineThatThisBuildLacks) {
  EXPECT_EQ(join_error({}, {.engine = "pigeon"}),
            "InvalidArgument: there is no engine pigeon in this build; there are inproc, shm");
  EXPECT_EQ(
      join_error({}, {.engine = "mpi"}),
      "InvalidArgument: the engine mpi is for C++ programs that call levada::mpi::join(); this build has inproc, shm");
  EXPECT_EQ(
      join_error({}, {.engine = "shm+c10d"}),
      "InvalidArgument: the engine shm+c10d is for Python programs that call levada.join(); this build has inproc, "
      "shm");
}

TEST(Join, NamesTheRemedyForOtherHostsIfTheLocalSizeIsUnknown) {
  std::string reported;
  const JoinOptions options{.timeout = std::chrono::milliseconds(10),
                            .report = [&](const std::string& text) { reported = text; }};
  const auto port = "join_test " + std::to_string(::getpid());
  const auto error = join_error({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", port}}, options);
  EXPECT_THAT(error,
              ::testing::MatchesRegex(
                  "Timeout: rank 1 found no rank 0 at the rendezvous 'MASTER_PORT=.*; if no "
                  "launcher has started this process, unset RANK and WORLD_SIZE, by which "
                  "it is one of 2 ranks; no variable says how many ranks are on this host: to join ranks of several "
                  "hosts, initialize torch.distributed first .*"));
  EXPECT_TRUE(error.starts_with("Timeout: " + reported)) << error << "\n" << reported;
}

}  // namespace
}  // namespace levada::launch
