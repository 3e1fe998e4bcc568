// Ranks, and the command itself, killed at any moment; LEVADA_KILLS says how often (3 unless set).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "command_run.h"

namespace levada::test {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// A second is promised; a machine that is busy with other tests may take longer to run what has to be run.
constexpr auto soon = std::chrono::seconds(5);

int kill_count() {
  const char* text = std::getenv("LEVADA_KILLS");
  return text != nullptr ? std::max(1, std::atoi(text)) : 3;
}

const std::string& corpus() {
  static const std::string path = make_corpus("faults.jsonl", 200);
  return path;
}

/// A job of four ranks that goes on until somebody ends it.
std::vector<std::string> endless() {
  return {"feed",     corpus(), "--mesh",  "dp=2,tp=2", "--batch",      "2", "--seq", "64",
          "--epochs", "0",      "--steps", "100000000", "--compute-ms", "1", "--json"};
}

void expect_one_sentence(const Outcome& outcome, const std::string& words) {
  EXPECT_THAT(outcome.err, ::testing::StartsWith("levada: "));
  EXPECT_THAT(outcome.err, HasSubstr(words));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

void expect_named_loss(Command& command, int rank, const std::map<int, pid_t>& ranks) {
  const auto begin = Clock::now();
  ::kill(ranks.at(rank), SIGKILL);
  const auto outcome = command.wait();
  EXPECT_LT(Clock::now() - begin, soon);
  EXPECT_EQ(outcome.status, 1);
  expect_one_sentence(outcome, "rank " + std::to_string(rank) + " was lost: killed by signal 9");
  EXPECT_TRUE(gone(ranks));
}

TEST(CommandFault, NamesTheRankThatWasKilled) {
  for (int rank = 0; rank < 4; ++rank) {
    Command command(endless());
    const auto ranks = command.wait_for_ranks(4);
    ASSERT_EQ(ranks.size(), 4u);
    expect_named_loss(command, rank, ranks);
  }
}

TEST(CommandFault, NamesARankThatWasKilledAtAnyMomentFromTheStartOn) {
  std::mt19937 random(20240607);
  for (int round = 0; round < kill_count(); ++round) {
    Command command(endless());
    const int rank = static_cast<int>(random() % 4);
    auto ranks = command.wait_for_ranks(1);
    while (ranks.size() < 4 && !ranks.contains(rank)) ranks = command.wait_for_ranks(ranks.size() + 1);
    ASSERT_TRUE(ranks.contains(rank));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60000));
    expect_named_loss(command, rank, ranks);
  }
}

TEST(CommandFault, LeavesNoRankWhenItIsKilledItself) {
  std::mt19937 random(20240608);
  for (int round = 0; round < kill_count(); ++round) {
    Command command(endless());
    const auto ranks = command.wait_for_ranks(4);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60000));
    command.signal(SIGKILL);
    EXPECT_EQ(command.wait().status, 128 + SIGKILL);
    EXPECT_TRUE(gone(ranks));
  }
}

TEST(CommandFault, EndsAllRanksQuietlyOnCtrlCAndOnTermination) {
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const char* engine : {"shm", "inproc"}) {
      auto arguments = endless();
      arguments.insert(arguments.end(), {"--engine", engine});
      Command command(arguments);
      const bool processes = std::string(engine) == "shm";
      const auto ranks = processes ? command.wait_for_ranks(4) : std::map<int, pid_t>();
      if (!processes) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const auto begin = Clock::now();
      command.signal(signal);
      const auto outcome = command.wait();
      EXPECT_LT(Clock::now() - begin, soon);
      EXPECT_EQ(outcome.status, 128 + signal) << engine;
      EXPECT_EQ(outcome.err, "");
      EXPECT_EQ(outcome.out, "");
      EXPECT_TRUE(gone(ranks));
    }
  }
}

TEST(CommandFault, TellsOfAFileThatShrinksWhileItIsRead) {
  const auto path = make_corpus("shrinks.jsonl", 2000);
  Command command({"feed", path, "--mesh", "dp=1,tp=2", "--batch", "2", "--seq", "64", "--epochs", "0", "--steps",
                   "100000000", "--compute-ms", "1"});
  const auto ranks = command.wait_for_ranks(2);
  ASSERT_EQ(ranks.size(), 2u);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  const auto outcome = command.wait();
  EXPECT_EQ(outcome.status, 1);
  expect_one_sentence(outcome, "shrinks.jsonl");
  EXPECT_TRUE(gone(ranks));
}

TEST(CommandFault, EndsALaunchedJobWhoseOtherRankIsKilled) {
  const auto place = [](int rank) {
    return Variables{{"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29531"}};
  };
  for (const int killed : {0, 1}) {
    auto arguments = endless();
    arguments[3] = "tp=2";
    const auto state = scratch() + "/launched" + std::to_string(killed);
    arguments.insert(arguments.end(), {"--save-state", state, "--every", "1"});
    Command first(arguments, place(0));
    Command second(arguments, place(1));
    ASSERT_TRUE(wait_for_file(state));
    (killed == 0 ? first : second).signal(SIGKILL);
    const auto begin = Clock::now();
    const auto outcome = (killed == 0 ? second : first).wait();
    EXPECT_LT(Clock::now() - begin, soon);
    EXPECT_EQ(outcome.status, 1);
    expect_one_sentence(outcome, "rank " + std::to_string(killed));
  }
}

}  // namespace
}  // namespace levada::test
