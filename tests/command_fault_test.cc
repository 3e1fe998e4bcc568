// Ranks, and the command itself, killed at random moments; LEVADA_KILLS sets the number of kills (3 unless set).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "command_run.h"
#include "levada/launch/launch.h"

namespace levada::test {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// The promise is one second; a machine that is busy with other tests may be slower.
constexpr auto soon = std::chrono::seconds(5);

int kill_count() {
  const char* text = std::getenv("LEVADA_KILLS");
  return text != nullptr ? std::max(1, std::atoi(text)) : 3;
}

const std::string& corpus() {
  static const std::string path = make_corpus("faults.jsonl", 200);
  return path;
}

/// Returns the arguments of a job of four ranks that runs until it is ended.
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

TEST(CommandFault, NamesAKilledRank) {
  for (int rank = 0; rank < 4; ++rank) {
    Command command(endless());
    const auto ranks = command.wait_for_ranks(4);
    ASSERT_EQ(ranks.size(), 4u);
    expect_named_loss(command, rank, ranks);
  }
}

TEST(CommandFault, NamesARankKilledAtAnyTime) {
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

TEST(CommandFault, LeavesNoRankWhenKilled) {
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

TEST(CommandFault, EndsAllRanksQuietlyOnSigintAndSigterm) {
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

TEST(CommandFault, ReportsAFileThatShrinksDuringReading) {
  const auto path = scratch() + "/shrinks.bin";
  ASSERT_EQ(run({"convert", make_corpus("shrinks.jsonl", 2000), path}).status, 0);
  Command command({"feed", path, "--mesh", "dp=1,tp=2", "--batch", "2", "--seq", "64", "--epochs", "0", "--steps",
                   "100000000", "--compute-ms", "1"});
  const auto ranks = command.wait_for_ranks(2);
  ASSERT_EQ(ranks.size(), 2u);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  const auto outcome = command.wait();
  EXPECT_EQ(outcome.status, 1);
  expect_one_sentence(outcome, "shrinks.bin");
  EXPECT_TRUE(gone(ranks));
}

TEST(CommandFault, EndsALaunchedJobAfterAnotherRankIsKilled) {
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

Variables launched(int rank, int size, const std::string& port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"MASTER_PORT", port}};
}

TEST(CommandFault, RankZeroReportsWhyALaunchedRankDoesNotStart) {
  const std::vector<std::string> good = {"feed", corpus(), "--mesh", "tp=3", "--batch", "2", "--seq", "64"};
  for (const int wrong : {0, 2}) {
    for (const auto& [option, words] : std::map<std::string, std::string>{
             {"--mseh=tp=3", "unknown option --mseh"}, {"--mesh=tp=2", "the mesh tp=2 has 2 ranks"}}) {
      auto bad = good;
      bad.push_back(option);
      std::vector<std::unique_ptr<Command>> commands;
      for (int rank = 0; rank < 3; ++rank) {
        commands.push_back(std::make_unique<Command>(rank == wrong ? bad : good, launched(rank, 3, "29533")));
      }
      std::string all;
      for (auto& command : commands) {
        const auto outcome = command->wait();
        EXPECT_EQ(outcome.status, 2) << outcome.err;
        all += outcome.err;
      }
      EXPECT_THAT(all, HasSubstr(words));
      EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 1) << all;
      if (wrong != 0) {
        EXPECT_THAT(all, HasSubstr("rank 2: "));
      }
    }
  }
}

TEST(CommandFault, LimitsTheWaitForTheStartOfALaunchedJob) {
  for (const int rank : {0, 1}) {
    auto arguments = endless();
    arguments[3] = "tp=2";
    arguments.insert(arguments.end(), {"--timeout", "500ms"});
    const auto begin = Clock::now();
    const auto outcome = run(arguments, launched(rank, 2, "29534"));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
    EXPECT_EQ(outcome.status, 1);
    expect_one_sentence(outcome, rank == 0 ? "for rank(s) 1" : "rank 1 found no rank 0");
  }
}

TEST(CommandFault, ARankCanTolerateTheFailureOfACommandThatItRuns) {
  // The rank is a shell, like a script that runs levada.
  const auto result =
      launch::run_local(2, {"-c", fmt::format("{} inspect /nowhere.jsonl 2>/dev/null; exit 0", LEVADA_COMMAND)},
                        {.program = "/bin/bash"});
  EXPECT_EQ(result.exit_status, 0) << result.message;
  EXPECT_EQ(result.message, "");
}

/// Runs the command under a shell's limits. It reads text as bytes.
Outcome run_limited(const std::string& limits, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin() + 1, {"--tokenizer", "bytes"});
  std::string line = limits + "; exec " + LEVADA_COMMAND;
  for (const auto& argument : arguments) line += " '" + argument + "'";
  return Command({"-c", line}, {}, "/bin/bash").wait();
}

// A sanitizer aborts a process that cannot allocate or that finds no /proc.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(CommandFault, StartsRanksWithoutProc) {
  const std::string empty_proc = "mount -t tmpfs none /proc";
  const auto in_own_mounts = [](const std::string& line) {
    return Command({"-m", "sh", "-c", line}, {}, "/usr/bin/unshare").wait();
  };
  if (in_own_mounts(empty_proc).status != 0) GTEST_SKIP() << "needs mounts";  // skipped without: rights to mount
  const auto outcome = in_own_mounts(empty_proc + "; exec " + LEVADA_COMMAND + " feed '" + corpus() +
                                     "' --tokenizer bytes --mesh dp=2 --batch 2 --seq 64 --steps 2 --json");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST(CommandFault, EndsWithOneSentenceIfThreadsOrMemoryAreRefused) {
  std::string text;
  for (int line = 0; line < 2000; ++line) text += R"({"text": ")" + std::string(16'000, 'x') + "\"}\n";
  const std::vector<std::string> feed = {"feed",      write_file("limited.jsonl", text),
                                         "--mesh",    "dp=2,tp=2",
                                         "--batch",   "2",
                                         "--seq",     "128",
                                         "--steps",   "1000",
                                         "--timeout", "5s"};
  for (const char* limits : {"ulimit -v 22000", "ulimit -v 30000", "ulimit -v 60000", "ulimit -v 100000",
                             "ulimit -v 200000", "ulimit -v 300000", "ulimit -n 64"}) {
    for (const char* engine : {"shm", "inproc"}) {
      auto arguments = feed;
      arguments.insert(arguments.end(), {"--engine", engine});
      if (std::string(limits) == "ulimit -n 64") arguments.insert(arguments.end(), {"--io-threads", "256"});
      const auto begin = Clock::now();
      const auto outcome = run_limited(limits, arguments);
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(40)) << limits << " " << engine;
      // The loader needs some address space, too.
      if (outcome.status == 0 || outcome.status == 127) continue;
      EXPECT_EQ(outcome.status, 1) << limits << " " << engine << ": " << outcome.err;
      EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1)
          << limits << " " << engine << ": " << outcome.err;
    }
  }
}

/// A control group with a memory limit, removed on destruction.
class MemoryGroup {
 public:
  explicit MemoryGroup(std::uint64_t bytes) {
    const bool v1 = std::filesystem::exists("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    const std::string name = fmt::format("levada-test-{}", ::getpid());
    folder_ = (v1 ? "/sys/fs/cgroup/memory/" : "/sys/fs/cgroup/") + name;
    std::error_code error;
    std::filesystem::create_directory(folder_, error);
    std::ofstream limit(folder_ + (v1 ? "/memory.limit_in_bytes" : "/memory.max"));
    limit << bytes << std::flush;
    std::ofstream(folder_ + (v1 ? "/memory.memsw.limit_in_bytes" : "/memory.swap.max"))
        << (v1 ? bytes : 0) << std::flush;
    is_usable_ = limit.good();
  }
  ~MemoryGroup() {
    std::error_code error;
    std::filesystem::remove(folder_, error);
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  bool is_usable() const { return is_usable_; }
  /// Returns the command with which a shell joins the group.
  std::string join() const { return "echo $$ >" + folder_ + "/cgroup.procs"; }

 private:
  std::string folder_;
  bool is_usable_ = false;
};

constexpr auto no_control_group = "this user may not make a control group with a limit of memory";

TEST(CommandFault, TokenizesMoreTextThanItsControlGroupAllowsMemory) {
  const MemoryGroup group(std::uint64_t{96} << 20);
  if (!group.is_usable()) GTEST_SKIP() << no_control_group;  // skipped without: a control group
  const auto path = scratch() + "/large.jsonl";
  const auto line = R"({"text": ")" + std::string(4000, 'x') + "\"}\n";
  std::ofstream file(path);
  for (int i = 0; i < 40'000; ++i) file << line;
  file.close();
  const auto outcome =
      run_limited(group.join(), {"feed", path, "--mesh", "dp=1", "--batch", "1", "--seq", "64", "--steps", "1"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST(CommandFault, PacksInItsCacheOrReportsTheMemoryThatAControlGroupDenies) {
  const MemoryGroup group(std::uint64_t{48} << 20);
  if (!group.is_usable()) GTEST_SKIP() << no_control_group;  // skipped without: a control group
  const auto path = scratch() + "/documents.bin";
  std::string lines;
  for (int i = 0; i < 6'500'000; ++i) lines += "{\"text\":\"ab\"}\n";
  ASSERT_EQ(run({"convert", write_file("documents.jsonl", lines), path, "--overwrite"}).status, 0);
  const auto feed = [&](const std::string& cache) {
    return run_limited(group.join(), {"feed", path, "--batch", "1", "--seq", "4", "--steps", "1", "--pack", "best-fit",
                                      "--cache-dir", cache});
  };
  const auto cached = feed(scratch() + "/orders");
  EXPECT_EQ(cached.status, 0) << cached.err;
  const auto refused = feed(path + "/no-folder");
  EXPECT_EQ(refused.status, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("the order of 6500000 packed documents takes about "));
  EXPECT_THAT(refused.err, HasSubstr(" of the 48.0 MiB that the machine and this process's control groups allow"));
}

#endif

TEST(CommandFault, WritesNothingIfStandardOutputIsClosed) {
  const std::vector<std::string> feed = {"feed", corpus(), "--mesh", "dp=2", "--batch", "2", "--seq", "64", "--json"};
  EXPECT_EQ(run_limited("exec <&- >&- 2>&-", feed).status, 1);
}

}  // namespace
}  // namespace levada::test
