// `levada feed` that stops and resumes: states, skipped rounds, tails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "command_run.h"

namespace levada::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::string& corpus() {
  static const std::string path = make_corpus("state.jsonl", 300);
  return path;
}

std::string state(const std::string& name) {
  return scratch() + "/" + name + ".state";
}

Outcome feed(std::vector<std::string> more) {
  more.insert(more.begin(), {"feed", corpus(), "--seq", "64"});
  return run(more);
}

Json feed_json(std::vector<std::string> more) {
  more.emplace_back("--json");
  const auto outcome = feed(more);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return Json::parse(outcome.out);
}

std::int64_t all_samples() {
  static const std::int64_t samples = feed_json({"--batch", "1", "--eval"}).at("samples");
  return samples;
}

void expect_refusal(const Outcome& outcome, int status, const std::string& words) {
  EXPECT_EQ(outcome.status, status);
  EXPECT_THAT(outcome.err, ::testing::StartsWith("levada: "));
  EXPECT_THAT(outcome.err, HasSubstr(words));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

TEST(CommandState, ResumesWithOtherWeightsIfRequested) {
  const auto file = state("weights"), a = make_corpus("a.jsonl", 300), b = make_corpus("b.jsonl", 300);
  const auto mix = [](int weight) {
    const auto json = R"({"sources": [{"path": "a.jsonl", "weight": 1}, {"path": "b.jsonl", "weight": )";
    return write_file("weights.json", json + std::to_string(weight) + "}]}");
  };
  const std::vector<std::string> options = {"--seq", "64",     "--batch", "4",         "--epochs", "0",     "--steps",
                                            "100",   "--mesh", "dp=2",    "--readers", "dp",       "--json"};
  const auto mixed = [&](int weight, std::vector<std::string> more) {
    more.insert(more.begin(), {"feed", mix(weight), "--tokenizer", "bytes"});
    more.insert(more.end(), options.begin(), options.end());
    return run(more);
  };
  ASSERT_EQ(mixed(1, {"--save-state", file}).status, 0);
  expect_refusal(mixed(3, {"--load-state", file}), 2, "from its sample 800 on (--resume-weights, resume_weights=True)");
  const auto changed = mixed(3, {"--load-state", file, "--save-state", file, "--resume-weights"});
  ASSERT_EQ(changed.status, 0) << changed.err;
  EXPECT_NEAR(Json::parse(changed.out).at("sources").at(1).at("share").get<double>(), 0.75, 0.03);
  EXPECT_EQ(mixed(3, {"--load-state", file}).status, 0);
  expect_refusal(mixed(1, {"--load-state", file}), 2, "but the cursor has 1 3 by samples");
  expect_refusal(mixed(1, {"--resume-weights"}), 2, "name its state with --load-state");
}

TEST(CommandState, ResumesOnAnotherMeshWithAnotherBatchAndOtherReaders) {
  const auto file = state("other");
  const auto first = feed_json({"--mesh", "dp=2,tp=2", "--batch", "4", "--steps", "7", "--save-state", file});
  EXPECT_EQ(first.at("samples"), 56);
  const auto second = feed_json({"--mesh", "dp=3", "--batch", "1", "--readers", "dp", "--steps", "5", "--load-state",
                                 file, "--save-state", file});
  EXPECT_EQ(second.at("samples"), 15);
  const auto rest = feed_json(
      {"--mesh", "pp=2", "--batch", "5", "--readers", "all", "--divide", "split", "--eval", "--load-state", file});
  EXPECT_EQ(rest.at("samples"), all_samples() - 56 - 15);
}

TEST(CommandState, AResumedRunDeliversTheSameBatchesAsAnUninterruptedOne) {
  const auto file = state("same");
  const std::vector<std::string> job = {"--mesh", "tp=2", "--batch", "2", "--shuffle", "--seed", "5"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), job.begin(), job.end());
    return feed_json(more);
  };
  with({"--steps", "10", "--save-state", file});
  const auto continued = with({"--steps", "6", "--load-state", file});
  const auto skipped = with({"--steps", "6", "--skip", "10"});
  EXPECT_EQ(continued.at("ranks").at(0).at("fields"), skipped.at("ranks").at(0).at("fields"));
}

TEST(CommandState, SkippingPastTheEndStopsAllRanks) {
  const auto report = feed_json({"--mesh", "dp=2", "--batch", "4", "--skip", "1000000"});
  EXPECT_EQ(report.at("steps"), 0);
  EXPECT_EQ(report.at("samples"), 0);
}

TEST(CommandState, EveryTailOptionHandlesTheLastRound) {
  const auto samples = all_samples();
  const std::int64_t round = 2 * 7;
  ASSERT_NE(samples % round, 0);
  const auto tail = [&](const char* how) { return feed_json({"--mesh", "dp=2", "--batch", "7", "--tail", how}); };
  EXPECT_EQ(tail("drop").at("samples"), samples / round * round);
  EXPECT_EQ(tail("pad").at("samples"), samples);
  EXPECT_EQ(tail("short").at("samples"), samples);
  EXPECT_EQ(tail("pad").at("bytes_delivered"), (samples / round + 1) * round * 64 * (8 + 8 + 8 + 4));
  EXPECT_EQ(tail("short").at("bytes_delivered"), samples * 64 * (8 + 8 + 8 + 4));
}

TEST(CommandState, IsSavedBeforeATerminatedJobLeaves) {
  for (const char* engine : {"shm", "inproc"}) {
    const auto file = state(engine);
    Command command({"feed",     corpus(), "--seq",    "64",        "--mesh",       "dp=2,tp=2", "--batch",      "1",
                     "--epochs", "0",      "--steps",  "100000000", "--compute-ms", "20",        "--save-state", file,
                     "--every",  "10",     "--engine", engine,      "--json"});
    ASSERT_TRUE(wait_for_file(file));
    command.signal(SIGTERM);
    const auto outcome = command.wait();
    EXPECT_EQ(outcome.status, std::string(engine) == "shm" ? 128 + SIGTERM : 0) << outcome.err;
    const auto stopped = Json::parse(outcome.out);
    EXPECT_GT(stopped.at("steps"), 0);
    const auto rest = feed_json({"--mesh", "dp=1", "--batch", "3", "--eval", "--load-state", file});
    EXPECT_EQ(stopped.at("samples").get<std::int64_t>() + rest.at("samples").get<std::int64_t>(), all_samples());
  }
}

TEST(CommandState, PeriodicStatesSurviveAKill) {
  const auto file = state("every");
  Command command({"feed", corpus(), "--seq", "64", "--mesh", "dp=2", "--batch", "1", "--epochs", "0", "--steps",
                   "100000000", "--compute-ms", "1", "--save-state", file, "--every", "2", "--json"});
  ASSERT_TRUE(wait_for_file(file));
  command.signal(SIGKILL);
  command.wait();
  const auto rest =
      feed_json({"--mesh", "dp=2", "--batch", "1", "--load-state", file, "--epochs", "100000", "--steps", "3"});
  EXPECT_EQ(rest.at("samples"), 6);
}

TEST(CommandState, AnInterruptedSaveLeavesNoPartialFile) {
  const auto folder = scratch() + "/interrupted";
  for (int trial = 0; trial < 6; ++trial) {
    std::filesystem::create_directory(folder);
    Command command({"feed", corpus(), "--seq", "64", "--mesh", "dp=2", "--batch", "1", "--epochs", "0", "--steps",
                     "100000000", "--save-state", folder + "/state", "--every", "1"});
    const auto ranks = command.wait_for_ranks(2);
    ASSERT_TRUE(wait_for_file(folder + "/state"));
    // Signal the rank that saves: if another rank ended first, this one would be killed after a while.
    for (const int signal : {SIGINT, SIGHUP}) ::kill(ranks.at(0), signal);
    command.wait();
    EXPECT_FALSE(std::filesystem::exists(folder + "/.state.partial"));
    std::filesystem::remove_all(folder);
  }
}

TEST(CommandState, RejectsAStateAfterTheEndOfTheData) {
  const auto file = state("second_epoch");
  feed_json({"--batch", "5", "--epochs", "2", "--tail", "short", "--save-state", file});
  expect_refusal(feed({"--load-state", file}), 2, "but the data ends with sample");
  EXPECT_EQ(feed_json({"--batch", "5", "--epochs", "2", "--tail", "short", "--load-state", file}).at("steps"), 0);
}

TEST(CommandState, RejectsAStateOfAnotherRun) {
  const auto file = state("good");
  feed_json({"--steps", "3", "--batch", "2", "--save-state", file});
  expect_refusal(feed({"--load-state", state("missing")}), 2, "No such file");
  expect_refusal(feed({"--load-state", write_file("empty.state", "")}), 2, "is empty");
  expect_refusal(feed({"--load-state", write_file("junk.state", "no state at all")}), 1, "these bytes are no cursor");
  expect_refusal(feed({"--load-state", file, "--shuffle"}), 2, "shuffle");
  expect_refusal(run({"feed", corpus(), "--seq", "32", "--load-state", file}), 2, "sequence is 32, there 64");
  const auto other = make_corpus("other.jsonl", 200);
  expect_refusal(run({"feed", other, "--seq", "64", "--load-state", file}), 2, "corpus");
}

TEST(CommandState, RejectsATruncatedState) {
  const auto file = state("whole");
  feed_json({"--steps", "3", "--batch", "2", "--save-state", file});
  const auto size = std::filesystem::file_size(file);
  for (const auto length : {std::uintmax_t{1}, size / 2, size - 1}) {
    const auto cut = state("cut");
    std::filesystem::copy_file(file, cut, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(cut, length);
    expect_refusal(feed({"--load-state", cut}), 1, "cut.state cannot be used");
  }
}

TEST(CommandState, RejectsInvalidOptionsBeforeAnythingStarts) {
  expect_refusal(feed({"--every", "3"}), 2, "--save-state");
  expect_refusal(feed({"--save-state", scratch()}), 2, "is a directory");
  expect_refusal(feed({"--save-state", scratch() + "/no/such/folder"}), 2, "No such file or directory");
  expect_refusal(feed({"--tail", "cut"}), 2, "drop, pad or short");
  expect_refusal(feed({"--skip", "-1"}), 2, "--skip");
  expect_refusal(feed({"--eval", "--epochs", "2"}), 2, "--eval");
  expect_refusal(feed({"--divide", "half"}), 2, "deal");
}

}  // namespace
}  // namespace levada::test
