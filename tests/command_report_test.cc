// `levada feed --report` and `--trace`: the files that they write, even if the feed fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "command_run.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

const std::string& corpus() {
  static const std::string path = make_corpus("report.jsonl", 200);
  return path;
}

std::vector<std::string> feed_arguments(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"feed", corpus(), "--mesh", "dp=2,tp=2", "--batch", "2", "--seq", "64"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// Returns the data about the feed that a page contains.
Json feed_in(const std::string& page) {
  const auto text = content(page);
  const std::string opening = "id=\"data\">";
  const auto begin = text.find(opening) + opening.size();
  return Json::parse(text.substr(begin, text.find("</script>", begin) - begin)).at("feed");
}

std::string fresh(const std::string& name) {
  return scratch() + "/" + name;
}

TEST(CommandReport, DoesNotChangeTheOutput) {
  const auto page = fresh("same.html");
  const auto plain = Json::parse(run(feed_arguments({"--steps", "5", "--json"})).out);
  const auto outcome = run(feed_arguments({"--steps", "5", "--json", "--report", page}));
  EXPECT_EQ(outcome.err, "levada: wrote the report to " + page + "\n");
  auto with = Json::parse(outcome.out);
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(with["ranks"][rank]["fields"], plain["ranks"][rank]["fields"]);
  EXPECT_THAT(content(page), ::testing::StartsWith("<!DOCTYPE html>"));
}

TEST(CommandReport, RecordsThreadsLikeProcesses) {
  for (const char* engine : {"inproc", "shm"}) {
    const auto path = fresh(std::string(engine) + ".json");
    EXPECT_EQ(run(feed_arguments({"--steps", "7", "--engine", engine, "--trace", path})).status, 0);
    int steps = 0;
    bool arrows = false, memory = false;
    const auto trace = Json::parse(content(path));
    for (const auto& event : trace.at("traceEvents")) {
      steps += event.at("name") == "own step" ? 1 : 0;
      arrows = arrows || event.at("ph") == "f";
      memory = memory || event.at("ph") == "C";
    }
    EXPECT_EQ(steps, 4 * 7) << engine;
    EXPECT_TRUE(arrows && memory) << engine;
  }
}

TEST(CommandReport, RejectsAnUnwritableFileBeforeAnythingStarts) {
  const auto refused = [](const std::vector<std::string>& more, const std::string& words) {
    const auto outcome = run(feed_arguments(more));
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(words));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  };
  refused({"--report", scratch()}, "--report " + scratch() + " is a directory");
  refused({"--trace", fresh("nowhere/trace.json")}, "--trace");
  refused({"--report", fresh("one"), "--trace", fresh("one")}, "both name");
  EXPECT_FALSE(std::filesystem::exists(fresh("one")));
}

TEST(CommandReport, ShowsAllRanksWhenAReaderFails) {
  const auto path = fresh("breaks.bin");
  ASSERT_EQ(run({"convert", make_corpus("breaks.jsonl", 2000), path}).status, 0);
  const auto page = fresh("breaks.html"), state = fresh("breaks.state");
  Command command({"feed",         path,  "--mesh",  "tp=2",      "--batch",      "2", "--seq",    "64",
                   "--epochs",     "0",   "--steps", "100000000", "--compute-ms", "1", "--report", page,
                   "--save-state", state, "--every", "1"});
  ASSERT_TRUE(wait_for_file(state));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  const auto outcome = command.wait();
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("levada: wrote the report to " + page));
  const auto feed = feed_in(page);
  EXPECT_THAT(feed["error"].get<std::string>(), HasSubstr("rank 0 could not read step"));
  EXPECT_THAT(feed["error"].get<std::string>(), HasSubstr("breaks.bin"));
  EXPECT_EQ(feed["timelines"]["step"]["rows"].size(), 2u);
}

TEST(CommandReport, ShowsRankZerosPartIfARankIsLost) {
  const auto page = fresh("lost.html"), state = fresh("lost.state");
  Command command(feed_arguments({"--epochs", "0", "--steps", "100000000", "--compute-ms", "1", "--report", page,
                                  "--save-state", state, "--every", "1", "--json"}));
  ASSERT_TRUE(wait_for_file(state));
  const auto ranks = command.wait_for_ranks(4);
  ASSERT_EQ(ranks.size(), 4u);
  ::kill(ranks.at(3), SIGKILL);
  const auto outcome = command.wait();
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("rank 3 was lost"));
  EXPECT_EQ(outcome.out, "");
  const auto feed = feed_in(page);
  EXPECT_THAT(feed["error"].get<std::string>(), HasSubstr("rank 3 "));
  EXPECT_EQ(feed["timelines"]["step"]["rows"][0]["rank"], 0);
  EXPECT_EQ(feed["recording"]["silent"], 3);
  EXPECT_TRUE(gone(ranks));
}

TEST(CommandReport, IsWrittenByRankZeroOfALaunchedJob) {
  const auto page = fresh("launched.html");
  const auto place = [](int rank) {
    return Variables{{"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29577"}};
  };
  const std::vector<std::string> arguments = {"feed",  corpus(), "--mesh",  "dp=2", "--batch",  "2",
                                              "--seq", "64",     "--steps", "3",    "--report", page};
  Command first(arguments, place(0)), second(arguments, place(1));
  const auto zero = first.wait(), one = second.wait();
  EXPECT_EQ(zero.status, 0) << zero.err;
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_THAT(zero.err, HasSubstr("wrote the report to"));
  EXPECT_EQ(one.err, "");
  EXPECT_EQ(feed_in(page)["timelines"]["step"]["rows"].size(), 2u);
}

}  // namespace
}  // namespace levada::test
