// The command's answers to invalid arguments and data, and its smaller subcommands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "command_run.h"

namespace levada::test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

const std::string& corpus() {
  static const std::string path = make_corpus("usage.jsonl", 100);
  return path;
}

/// Expects a refusal with that status and one sentence that contains `words`, and no standard output.
void expect_refusal(const std::vector<std::string>& arguments, int status, const std::string& words,
                    const Variables& variables = {}) {
  const auto outcome = run(arguments, variables);
  const auto line = testing::PrintToString(arguments);
  EXPECT_EQ(outcome.status, status) << line << outcome.err;
  EXPECT_EQ(outcome.out, "") << line;
  EXPECT_THAT(outcome.err, AllOf(StartsWith("levada: "), EndsWith("\n"), HasSubstr(words))) << line;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

/// Expects `levada feed` to refuse these options on valid data.
void expect_feed_refusal(const std::vector<std::string>& options, int status, const std::string& words) {
  std::vector<std::string> arguments = {"feed", corpus(), "--batch", "2", "--seq", "64"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  expect_refusal(arguments, status, words);
}

/// Expects `levada feed` to refuse a file with this text.
void expect_data_refusal(const std::string& name, const std::string& text, const std::string& words) {
  expect_refusal({"feed", write_file(name, text), "--mesh", "dp=1,tp=2", "--batch", "1", "--seq", "8"}, 1, words);
}

TEST(CommandUsage, RejectsMissingData) {
  expect_refusal({"feed", "/nowhere/corpus.jsonl", "--mesh", "tp=2"}, 1, "/nowhere/corpus.jsonl");
  std::filesystem::create_directory(scratch() + "/nothing");
  expect_refusal(
      {"feed", scratch() + "/nothing"}, 1,
      "nothing holds no data files: .jsonl, .ndjson, .json of lines, .txt (compressed too: .gz, .zst) or .bin");
  expect_refusal({"feed", scratch() + "/no*.jsonl"}, 1, "no file matches " + scratch() + "/no*.jsonl");
  expect_data_refusal("empty.jsonl", "", "empty.jsonl is empty");
  expect_refusal({"feed", write_file("corpus.csv", "a,b\n")}, 2, "corpus.csv is of unknown kind");
}

TEST(CommandUsage, NamesFileAndLineOfInvalidJson) {
  const std::string good = R"({"text": "a line that can be used"})"
                           "\n";
  expect_data_refusal("broken.jsonl", good + good + "{\"text\": \"no end\n", "broken.jsonl:3: ");
  expect_data_refusal("other.jsonl",
                      good + R"({"body": "elsewhere"})"
                             "\n",
                      "other.jsonl:2: ");
  expect_data_refusal("latin.jsonl", good + "{\"text\": \"\xe9\"}\n", "latin.jsonl:2: ");
  expect_data_refusal("number.jsonl", "{\"text\": 7}\n", "\"text\" is not a string");
}

TEST(CommandUsage, RejectsABatchLargerThanTheData) {
  expect_feed_refusal({"--mesh", "dp=2", "--batch", "100000"}, 2, "one step takes 200,000 samples");
  expect_feed_refusal({"--seq", "1000000"}, 2, "1000000");
}

TEST(CommandUsage, RejectsAnInvalidMesh) {
  expect_feed_refusal({"--mesh", "dp=0"}, 2, "dp");
  expect_feed_refusal({"--mesh", "dp=2,dp=2"}, 2, "dp");
  expect_feed_refusal({"--mesh", "nonsense"}, 2, "nonsense");
  expect_feed_refusal({"--mesh", "dp=2,xp=2"}, 2, "xp");
  expect_feed_refusal({"--mesh", "dp=4096"}, 2, "levada plan");
}

TEST(CommandUsage, RejectsAMeshOfAnotherSizeThanTheJob) {
  const Variables job = {{"RANK", "0"}, {"WORLD_SIZE", "8"}, {"MASTER_PORT", "29519"}};
  expect_refusal({"feed", corpus(), "--mesh", "dp=2,tp=2"}, 2, "has 4 ranks, but this job has 8", job);
}

TEST(CommandUsage, ARankThatDoesNotFindRankZeroReportsItsError) {
  const Variables job = {{"RANK", "1"}, {"WORLD_SIZE", "8"}, {"MASTER_PORT", "29519"}};
  expect_refusal({"feed", corpus(), "--mesh", "dp=2,tp=2"}, 2, "rank 1: the mesh dp=2,tp=2 has 4 ranks", job);
}

TEST(CommandUsage, OnlyOneRankReportsTheErrorOfASubcommandThatJoinsNoJob) {
  const Variables job = {{"RANK", "1"}, {"WORLD_SIZE", "8"}, {"MASTER_PORT", "29519"}};
  EXPECT_EQ(run({"plan", "--mesh", "dp=2,tp="}, job).err, "");
}

TEST(CommandUsage, RejectsAJobOnSeveralHosts) {
  const Variables job = {{"RANK", "0"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}};
  expect_refusal({"feed", corpus(), "--mesh", "dp=8"}, 1,
                 "rank 0 is one of 8, but LOCAL_WORLD_SIZE gives this host only 4; to join ranks of several hosts",
                 job);
}

TEST(CommandUsage, RejectsInvalidLayouts) {
  const auto lacking = write_file("lacking.json", R"json({"name": "x", "fields": {"images": ["shard(dp,0)"]}})json");
  const auto broken = write_file("broken.json", R"({"name": "x", "fields": )");
  expect_feed_refusal({"--layout", "bert"}, 2, "unknown layout bert; it must be gpt");
  expect_feed_refusal({"--layout", "/nowhere.json"}, 2, "/nowhere.json");
  expect_feed_refusal({"--layout", scratch()}, 2, scratch());
  expect_feed_refusal({"--layout", broken}, 2, broken);
  expect_feed_refusal({"--layout", lacking}, 2, "images");
}

TEST(CommandUsage, RejectsASequenceThatDoesNotDivide) {
  expect_feed_refusal({"--mesh", "cp=2", "--seq", "66"}, 2, "66");
  expect_feed_refusal({"--mesh", "cp=2", "--pack", "best-fit"}, 2, "choose a multiple of 4 (pad_to=, --pad-to)");
}

TEST(CommandUsage, RejectsInvalidNumbers) {
  expect_feed_refusal({"--batch", "0"}, 2, "--batch is 0");
  expect_feed_refusal({"--seq", "-3"}, 2, "--seq is -3");
  expect_feed_refusal({"--batch", "many"}, 2, "many");
  expect_feed_refusal({"--timeout", "soon"}, 2, "soon");
  expect_feed_refusal({"--timeout", "0"}, 2, "--timeout");
  expect_feed_refusal({"--steps", "-1"}, 2, "--steps is -1");
  expect_feed_refusal({"--epochs", "0"}, 2, "--epochs 0 never ends, so it requires --steps");
  expect_feed_refusal({"--mesh", "pp=4", "--depth", "3"}, 2, "--depth is 3; with 4 pipeline stages");
  expect_feed_refusal({"--readers", "some"}, 2, "some");
  expect_feed_refusal({"--engine", "pigeon"}, 2, "there is no engine pigeon");
  expect_feed_refusal({"--engine", "shm+mpi"}, 2,
                      "the engine shm+mpi is for C++ programs that call levada::mpi::join()");
  expect_feed_refusal({"--access", "private"}, 2, "read_only or copy");
}

TEST(CommandUsage, RejectsUnknownSubcommandsAndOptions) {
  expect_refusal({"irrigate"}, 2, "unknown subcommand irrigate; the subcommands are feed, run, plan");
  expect_refusal({"feed", corpus(), "--msh", "dp=2"}, 2, "unknown option --msh; see levada feed --help");
  expect_refusal({"feed"}, 2, "see levada feed --help");
  expect_refusal({"--nonsense"}, 2, "see levada --help");
}

TEST(CommandUsage, HelpOfEachSubcommandHasAnExample) {
  EXPECT_EQ(run({}).status, 2);
  EXPECT_THAT(run({}).out, HasSubstr("levada feed corpus.jsonl --tokenizer model.model --mesh"));
  const auto version = run({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_THAT(version.out, ::testing::MatchesRegex("levada [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  EXPECT_EQ(run({"--help"}).status, 0);
  for (const char* name : {"feed", "plan", "doctor"}) {
    const auto help = run({name, "--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.out, AllOf(HasSubstr("Example"), HasSubstr(std::string("levada ") + name)));
    EXPECT_EQ(help.err, "");
  }
}

TEST(CommandUsage, HelpShowsTheMainOptionsAndHelpAllShowsAll) {
  const auto main = run({"feed", "--help"}).out;
  const auto all = run({"feed", "--help-all"}).out;
  for (const char* option : {"--mesh", "--tokenizer", "--batch"}) {
    EXPECT_THAT(main, HasSubstr(option));
    EXPECT_THAT(all, HasSubstr(option));
  }
  for (const char* option : {"--io-limit", "--micro-order", "--resume-weights", "--json"}) {
    EXPECT_THAT(main, ::testing::Not(HasSubstr(option)));
    EXPECT_THAT(all, HasSubstr(option));
  }
  EXPECT_THAT(main, HasSubstr("levada feed --help-all shows "));
  EXPECT_LT(std::count(main.begin(), main.end(), '\n'), 30);
  for (const char* name : {"run", "plan", "convert", "inspect", "cache", "doctor"}) {
    EXPECT_EQ(run({name, "--help-all"}).status, 0);
    const auto help = run({name, "--help"}).out;
    EXPECT_LT(std::count(help.begin(), help.end(), '\n'), 30) << name;
  }
}

TEST(CommandUsage, EndsQuietlyWhenItsReaderHasClosed) {
  const std::string line = std::string(LEVADA_COMMAND) +
                           " plan --mesh dp=64,tp=8 2>&1 | head -n 1 >/dev/null; "
                           "exit ${PIPESTATUS[0]}";
  const int status = std::system(("bash -c '" + line + "'").c_str());
  EXPECT_THAT(WEXITSTATUS(status), ::testing::AnyOf(0, 141));
}

TEST(CommandPlan, ShowsATable) {
  const auto outcome = run({"plan", "--mesh", "dp=2,tp=2", "--batch", "8", "--seq", "1024"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("tokens"), HasSubstr("position_ids")));
}

TEST(CommandPlan, ShowsJsonForAMeshTooLargeForOneMachine) {
  const auto outcome = run({"plan", "--mesh", "dp=64,cp=4,tp=8,pp=2", "--seq", "4096", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto plan = Json::parse(outcome.out);
  for (const char* key :
       {"mesh", "fields", "audiences", "moves", "bytes_sent", "bytes_delivered", "edges", "peak_bytes"}) {
    EXPECT_TRUE(plan.contains(key)) << key;
  }
}

TEST(CommandPlan, ComparesReadersOnHypotheticalHosts) {
  const std::vector<std::string> many = {"plan", "--hosts", "64x8", "--link", "400Gbit/s", "--mesh", "dp=64,tp=8"};
  const auto table = run(many);
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("64 hosts with 8 ranks each"), HasSubstr("Recommended: --readers")));
  auto json = many;
  json.emplace_back("--json");
  EXPECT_EQ(Json::parse(run(json).out)["hosts"], 64);
}

TEST(CommandPlan, RejectsInvalidHosts) {
  expect_refusal({"plan", "--hosts", "64"}, 2, "--hosts is '64'; write hosts and the ranks on each as 64x8");
  expect_refusal({"plan", "--hosts", ""}, 2, "--hosts: the value is empty");
  expect_refusal({"plan", "--hosts", "64x8", "--link", "100"}, 2, "--link is '100'; write a speed as 100Gb/s");
  expect_refusal({"plan", "--hosts", "2x2", "--mesh", "dp=2"}, 2, "has 2 ranks, but this job has 4");
  expect_refusal({"plan", "--link", "100Gb/s"}, 2, "--link requires --hosts");
  expect_refusal({"plan", "--hosts", "2x2", "--exchange", "exchange.json"}, 2, "--hosts excludes --exchange");
}

TEST(CommandPlan, RejectsTheSameOptionsAsFeed) {
  expect_refusal({"plan", "--mesh", "cp=2", "--seq", "66"}, 2, "66");
  expect_refusal({"plan", "--mesh", "dp=two"}, 2, "two");
}

TEST(CommandDoctor, DescribesThisMachine) {
  const auto outcome = run({"doctor"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("engines"), HasSubstr("PAGEMAP_SCAN"), HasSubstr("GB/s")));
}

TEST(CommandDoctor, NamesTheEngineThatWouldJoinTheRanks) {
  const auto choice_in = [](Variables job) {
    const auto outcome = run({"doctor", "--json"}, job);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return Json::parse(outcome.out).at("engine").get<std::string>();
  };
  Variables job = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
  EXPECT_THAT(choice_in(job),
              StartsWith("shm if all 4 ranks are on this host, which no environment variable shows; otherwise"));
  job.insert({"LOCAL_WORLD_SIZE", "4"});
  EXPECT_EQ(choice_in(job), "shm: all 4 ranks are on one host");
  job["LOCAL_WORLD_SIZE"] = "2";
  EXPECT_EQ(choice_in(job),
            "shm+c10d once torch.distributed is initialized, shm+mpi by levada::mpi::join(): 2 of 4 ranks are on this "
            "host");
  job["RANK"] = "4";
  EXPECT_EQ(choice_in(job), "none: the environment contradicts itself: RANK is 4, but WORLD_SIZE is 4");
}

TEST(CommandDoctor, PrintsEnginesAndAdviceAsJson) {
  const auto outcome = run({"doctor", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto machine = Json::parse(outcome.out);
  EXPECT_THAT(machine.at("engines").get<std::vector<std::string>>(), ::testing::IsSupersetOf({"shm", "inproc"}));
  EXPECT_TRUE(machine.at("advice").is_array());
  EXPECT_GE(machine.at("cores"), 1);
  EXPECT_GT(machine.at("memory"), 0);
  EXPECT_GT(machine.at("copy_gb_s"), 0);
  EXPECT_GT(machine.at("host_copy_gb_s"), 0);
  EXPECT_GT(machine.at("wake_us"), 0);
  EXPECT_TRUE(machine.at("message_us").is_null() || machine.at("message_us") > 0);
}

TEST(CommandDoctor, PrintsOptionsThatPlanAccepts) {
  const auto machine = Json::parse(run({"doctor", "--json"}).out);
  std::istringstream words(machine.at("plan_options").get<std::string>());
  std::vector<std::string> plan = {"plan", "--hosts", "4x2", "--mesh", "dp=8", "--json"};
  for (std::string word; words >> word;) plan.push_back(word);
  const auto outcome = run(plan);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const double copied = machine.at("host_copy_gb_s");
  EXPECT_NEAR(Json::parse(outcome.out).at("memory_bytes_per_s").get<double>(), copied * 1e9, copied * 1e7);
}

TEST(CommandUsage, RejectsAnEmptyValueInsteadOfConsumingTheNextOption) {
  const auto outcome = run({"inspect", "--text-field=", "--json", "x.jsonl"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--text-field= has no value"));
  for (const std::string option : {"--mesh", "--steps", "--load-state", "--cache-size", "--seed", "--depth"}) {
    expect_feed_refusal({option, ""}, 2, option + ": the value is empty");
  }
  expect_refusal({"feed", "", "--seq", "8"}, 2, "PATH: the value is empty");
  expect_refusal({"cache", "--prune", "--cache-size", ""}, 2, "--cache-size: the value is empty");
}

TEST(CommandUsage, AcceptsOnlyDecimalNumbers) {
  const auto outcome = run({"feed", corpus(), "--batch", "02", "--seq", "0100", "--steps", "010", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto report = Json::parse(outcome.out);
  EXPECT_EQ(report.at("seq"), 100);
  EXPECT_EQ(report.at("batch"), 2);
  EXPECT_EQ(report.at("steps"), 10);
  expect_feed_refusal({"--steps", "99999999999999999999"}, 2, "--steps: 99999999999999999999 is out of range");
  expect_feed_refusal({"--steps", "0x10"}, 2, "--steps: 0x10 is not a whole number");
  expect_feed_refusal({"--seed", "-1"}, 2, "--seed: -1 is not a whole number from 0 on");
  expect_feed_refusal({"--compute-ms", "nan"}, 2, "--compute-ms is nan");
}

TEST(CommandUsage, NeverReplacesDevicesPipesAndInputs) {
  const auto pipe = scratch() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string option : {"--report", "--trace", "--save-state", "--metrics"}) {
    expect_feed_refusal({option, pipe}, 2, option + " " + pipe + " is a device or a pipe");
    expect_feed_refusal({option, corpus()}, 2, option + " " + corpus() + " is a file that is read");
  }
  expect_feed_refusal({"--report", scratch() + "/./x2", "--save-state", scratch() + "/x2"}, 2,
                      "--report and --save-state both name");
  expect_feed_refusal({"--mesh", "dp=2", "--metrics", scratch() + "/q.html", "--report", scratch() + "/q.rank1.html"},
                      2, "--report and --metrics both name " + scratch() + "/q.rank1.html");
}

TEST(CommandUsage, NeverReplacesAnInputUnderAnotherName) {
  const auto data = make_corpus("m.rank1.jsonl", 50), mix = scratch() + "/m.json", state = scratch() + "/m.state";
  std::ofstream(mix) << R"({"sources": [{"path": "m.rank1.jsonl", "weight": 1}]})";
  const auto refusal = [](const std::string& path, std::vector<std::string> options) {
    options.insert(options.begin(), {"feed", path, "--seq", "8", "--batch", "1", "--steps", "2"});
    const auto outcome = run(options);
    EXPECT_EQ(outcome.status, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(refusal("file://" + data, {"--report", data}), HasSubstr("is a file that is read"));
  EXPECT_THAT(refusal(mix, {"--report", data}), HasSubstr("is a file that is read"));
  EXPECT_THAT(refusal(data, {"--mesh", "dp=2", "--metrics", scratch() + "/m.jsonl"}),
              HasSubstr("is a file that is read"));
  ASSERT_EQ(run({"feed", data, "--seq", "8", "--batch", "1", "--steps", "2", "--save-state", state}).status, 0);
  EXPECT_THAT(refusal(data, {"--load-state", state, "--trace", state}), HasSubstr("is a file that is read"));
  const auto continued =
      run({"feed", data, "--seq", "8", "--batch", "1", "--steps", "2", "--load-state", state, "--save-state", state});
  EXPECT_EQ(continued.status, 0) << continued.err;
}

}  // namespace
}  // namespace levada::test
