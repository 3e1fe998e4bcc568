// `levada feed` on valid data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "command_run.h"

namespace levada::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::string& corpus() {
  static const std::string path = make_corpus("corpus.jsonl", 300);
  return path;
}

std::vector<std::string> feed_arguments(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"feed", corpus(), "--batch", "4", "--seq", "64"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Json feed_json(std::vector<std::string> more, const Variables& variables = {}) {
  more.emplace_back("--json");
  const auto outcome = run(feed_arguments(more), variables);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return Json::parse(outcome.out);
}

std::string digest_of(const Json& report, std::size_t rank, const std::string& field) {
  return report.at("ranks").at(rank).at("fields").at(field).at("digest");
}

void expect_refusal(const std::vector<std::string>& arguments, const std::string& words) {
  const auto outcome = run(arguments);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr(words));
}

/// Returns every rank's digests, which do not depend on the engine that carries the batches.
Json content_of(const Json& report) {
  Json content;
  for (const auto& rank : report.at("ranks")) content.push_back(rank.at("fields"));
  return content;
}

TEST(CommandFeed, PrintsAReadableTable) {
  const auto outcome = run(feed_arguments({"--mesh", "dp=2,tp=2", "--steps", "10"}));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("rank  coords   batches"));
  EXPECT_THAT(outcome.out, HasSubstr("   3  dp1 tp1       10"));
  EXPECT_THAT(outcome.out, HasSubstr("5,120 tokens in 80 samples of 64; 10 steps, as asked"));
  EXPECT_THAT(outcome.out, HasSubstr("read amplification 1.0"));
  EXPECT_THAT(outcome.out, HasSubstr("tensor-parallel peers received identical bits"));
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos) << "colours in a file";
}

TEST(CommandFeed, RanksAlongAnyDataAxisReceiveDifferentBatches) {
  const auto expected = feed_json({"--mesh", "dp=4", "--steps", "5"});
  for (const char* mesh : {"data=4", "dp_replicate=2,dp_shard=2", "fsdp=4"}) {
    for (const char* readers : {"one", "dp", "all"}) {
      const auto report = feed_json({"--mesh", mesh, "--steps", "5", "--readers", readers});
      EXPECT_EQ(content_of(report), content_of(expected)) << mesh << " read by " << readers;
      EXPECT_EQ(report.at("samples"), expected.at("samples")) << mesh;
      EXPECT_EQ(report.at("peers_identical"), true) << mesh;
    }
  }
  EXPECT_EQ(content_of(feed_json({"--mesh", "replica=4", "--data-axes", "replica", "--steps", "5"})),
            content_of(expected));
}

TEST(CommandFeed, RejectsUnknownAxesWithoutDataAxes) {
  for (const char* subcommand : {"feed", "plan"}) {
    std::vector<std::string> arguments = {subcommand, "--mesh", "dp=2,replica=2", "--batch", "2", "--seq", "64"};
    if (std::string(subcommand) == "feed") arguments.push_back(corpus());
    const auto outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("axis replica of the mesh 'dp=2,replica=2' may divide data or share it"));
    EXPECT_THAT(outcome.err, HasSubstr("--data-axes"));
  }
}

TEST(CommandFeed, ReportsHowItWasRun) {
  const auto shuffled = feed_json({"--mesh", "dp=2", "--steps", "2", "--shuffle", "--seed", "7"}).at("run");
  EXPECT_THAT(shuffled.at("version").get<std::string>(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_FALSE(shuffled.at("host").get<std::string>().empty());
  EXPECT_THAT(shuffled.at("began").get<std::string>(),
              testing::MatchesRegex("20[0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-9:]+Z"));
  const auto command = shuffled.at("command").get<std::vector<std::string>>();
  EXPECT_EQ(command.front(), "feed");
  EXPECT_THAT(command, testing::IsSupersetOf({"--shuffle", "--seed", "7"}));
  EXPECT_THAT(command, testing::Each(testing::Not(testing::StartsWith("--prepare"))));
  EXPECT_EQ(shuffled.at("seed"), 7);
  EXPECT_TRUE(feed_json({"--mesh", "dp=2", "--steps", "2"}).at("run").at("seed").is_null());
}

TEST(CommandFeed, PrintsOneJsonObjectWithEveryKey) {
  const auto report = feed_json({"--mesh", "dp=2,tp=2", "--steps", "10"});
  EXPECT_EQ(report.at("steps"), 10);
  EXPECT_EQ(report.at("samples"), 2 * 4 * 10);
  EXPECT_EQ(report.at("tokens"), 2 * 4 * 10 * 64);
  EXPECT_EQ(report.at("bytes_delivered"), 4 * 10 * 4 * 64 * (3 * 8 + 4));
  // Both tp peers of a batch share one message, which has a header.
  EXPECT_GE(report.at("bytes_sent"), 2 * 10 * 4 * 64 * (3 * 8 + 4));
  EXPECT_LT(report.at("bytes_sent"), 3 * 10 * 4 * 64 * (3 * 8 + 4));
  EXPECT_GT(report.at("tokens_per_s"), 0);
  EXPECT_GT(report.at("seconds"), 0);
  EXPECT_GT(report.at("prepare_s"), 0);
  for (const auto& rank : report.at("ranks")) EXPECT_GT(rank.at("digest_s"), 0);
  EXPECT_GE(report.at("prepare_bytes"), 0);
  EXPECT_GT(report.at("bytes_read"), 0);
  EXPECT_EQ(report.at("end"), "steps");
  EXPECT_EQ(report.at("skipped_lines"), 0);
  ASSERT_EQ(report.at("ranks").size(), 4u);
  const auto& rank = report.at("ranks").at(2);
  EXPECT_EQ(rank.at("rank"), 2);
  EXPECT_EQ(rank.at("coords"), (Json{{"dp", 1}, {"tp", 0}}));
  EXPECT_EQ(rank.at("batches"), 10);
  EXPECT_EQ(rank.at("bytes"), 10 * 4 * 64 * (3 * 8 + 4));
  EXPECT_GE(rank.at("wait_s"), 0);
  const auto& tokens = rank.at("fields").at("tokens");
  EXPECT_EQ(tokens.at("dtype"), "int64");
  EXPECT_EQ(tokens.at("shape"), (Json{4, 64}));
  EXPECT_EQ(tokens.at("digest").get<std::string>().size(), 32u);
  EXPECT_EQ(rank.at("fields").at("loss_mask").at("dtype"), "float32");
}

TEST(CommandFeed, TensorParallelPeersShareDataAndDataParallelPeersDoNot) {
  const auto report = feed_json({"--mesh", "dp=2,tp=2"});
  EXPECT_EQ(digest_of(report, 0, "tokens"), digest_of(report, 1, "tokens"));
  EXPECT_EQ(digest_of(report, 2, "labels"), digest_of(report, 3, "labels"));
  EXPECT_NE(digest_of(report, 0, "tokens"), digest_of(report, 2, "tokens"));
  EXPECT_NE(digest_of(report, 0, "tokens"), digest_of(report, 0, "labels"));
  EXPECT_EQ(report.at("peers_identical"), true);
}

TEST(CommandFeed, AllReadersDeliverTheSameBits) {
  const auto one = feed_json({"--mesh", "dp=2,tp=2", "--seq", "256", "--shuffle", "--seed", "7"});
  const auto all = feed_json({"--mesh", "dp=2,tp=2", "--seq", "256", "--shuffle", "--seed", "7", "--readers", "all"});
  EXPECT_EQ(content_of(one), content_of(all));
  EXPECT_LE(one.at("read_amplification"), 1.01);
  EXPECT_NEAR(all.at("read_amplification"), 2 * one.at("read_amplification").get<double>(), 0.05);
  EXPECT_EQ(one.at("bytes_consumed"), all.at("bytes_consumed"));
}

TEST(CommandFeed, ThreadsProcessesAndCopiesDeliverTheSameBits) {
  const auto processes = feed_json({"--mesh", "dp=2,tp=2", "--engine", "shm"});
  const auto threads = feed_json({"--mesh", "dp=2,tp=2", "--engine", "inproc"});
  const auto copies = feed_json({"--mesh", "dp=2,tp=2", "--access", "copy"});
  EXPECT_EQ(content_of(processes), content_of(threads));
  EXPECT_EQ(content_of(processes), content_of(copies));
  EXPECT_EQ(threads.at("engine"), "inproc");
}

TEST(CommandFeed, AnotherSeedYieldsAnotherOrder) {
  const auto stored = feed_json({"--steps", "3"});
  const auto seven = feed_json({"--steps", "3", "--shuffle", "--seed", "7"});
  const auto eight = feed_json({"--steps", "3", "--shuffle", "--seed", "8"});
  const std::set<std::string> digests = {digest_of(stored, 0, "tokens"), digest_of(seven, 0, "tokens"),
                                         digest_of(eight, 0, "tokens")};
  EXPECT_EQ(digests.size(), 3u);
}

TEST(CommandFeed, EndsWithTheDataOrAfterMoreEpochs) {
  const auto once = feed_json({"--mesh", "dp=2"});
  const auto twice = feed_json({"--mesh", "dp=2", "--epochs", "2"});
  EXPECT_EQ(once.at("end"), "exhausted");
  EXPECT_GE(twice.at("steps"), 2 * once.at("steps").get<int>());
  EXPECT_LE(twice.at("steps"), 2 * once.at("steps").get<int>() + 1);
}

TEST(CommandFeed, EachPipelineStageReceivesItsFields) {
  const auto report = feed_json({"--mesh", "pp=2", "--attention-mask", "--steps", "2"});
  const auto& first = report.at("ranks").at(0).at("fields");
  const auto& last = report.at("ranks").at(1).at("fields");
  EXPECT_TRUE(first.contains("tokens") && first.contains("position_ids") && first.contains("attention_mask"));
  EXPECT_FALSE(first.contains("labels") || first.contains("loss_mask"));
  EXPECT_TRUE(last.contains("labels") && last.contains("loss_mask") && last.contains("attention_mask"));
  EXPECT_FALSE(last.contains("tokens"));
  EXPECT_EQ(first.at("attention_mask").at("shape"), (Json{4, 1, 64, 64}));
}

TEST(CommandFeed, DeliversInt32IfRequested) {
  const auto wide = feed_json({"--mesh", "dp=1", "--steps", "2"});
  const auto narrow = feed_json({"--mesh", "dp=1", "--steps", "2", "--dtype", "int32"});
  EXPECT_EQ(narrow.at("ranks").at(0).at("fields").at("tokens").at("dtype"), "int32");
  EXPECT_EQ(narrow.at("ranks").at(0).at("bytes").get<int>() * 28, wide.at("ranks").at(0).at("bytes").get<int>() * 16);
  expect_refusal(feed_arguments({"--dtype", "int16"}), "--dtype is int16; it must be int64 or int32");
}

TEST(CommandFeed, RespectsEndsOfDocumentsIfRequested) {
  const auto plain = feed_json({"--attention-mask", "--steps", "2"});
  const auto mindful = feed_json(
      {"--attention-mask", "--steps", "2", "--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"});
  EXPECT_EQ(digest_of(plain, 0, "tokens"), digest_of(mindful, 0, "tokens"));
  for (const char* field : {"position_ids", "attention_mask", "loss_mask"}) {
    EXPECT_NE(digest_of(plain, 0, field), digest_of(mindful, 0, field)) << field;
  }
  expect_refusal(feed_arguments({"--reset-attention-mask"}), "requires an attention mask");
}

TEST(CommandFeed, ReadsAPartOfASplit) {
  const auto all = feed_json({"--batch", "1", "--eval"}).at("samples").get<int>();
  const auto train = feed_json({"--batch", "1", "--eval", "--split", "80,20"}).at("samples").get<int>();
  const auto valid =
      feed_json({"--batch", "1", "--eval", "--split", "80,20", "--part", "valid"}).at("samples").get<int>();
  EXPECT_NEAR(train, 0.8 * all, 0.05 * all);
  EXPECT_NEAR(valid, 0.2 * all, 0.05 * all);
  expect_refusal(feed_arguments({"--split", "80,20", "--part", "test"}), "the split 80,20 leaves nothing for test");
  expect_refusal(feed_arguments({"--part", "dev"}), "the part of a split is dev; it must be train, valid or test");
}

TEST(CommandFeed, CutsTheSequenceForContextParallelRanks) {
  const auto report = feed_json({"--mesh", "cp=2,tp=2", "--steps", "2"});
  EXPECT_EQ(report.at("ranks").at(0).at("fields").at("tokens").at("shape"), (Json{4, 32}));
  EXPECT_NE(digest_of(report, 0, "tokens"), digest_of(report, 2, "tokens"));
  EXPECT_EQ(digest_of(report, 2, "tokens"), digest_of(report, 3, "tokens"));
}

TEST(CommandFeed, AcceptsALayoutFile) {
  const auto layout = write_file("mine.json", R"json({"name": "mine", "fields": {"tokens": ["shard(dp,0)"]},
      "otherwise": ["shard(dp,0)", "stages(pp,first)"]})json");
  const auto report = feed_json({"--mesh", "pp=2", "--layout", layout, "--steps", "1"});
  EXPECT_EQ(report.at("ranks").at(0).at("fields").size(), 4u);
  EXPECT_EQ(report.at("ranks").at(1).at("fields").size(), 1u);
}

TEST(CommandFeed, RefusesOptionsThatDoNothing) {
  const auto error_of = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"feed", corpus()});
    const auto outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2);
    return outcome.err;
  };
  EXPECT_THAT(error_of({"--max-bad", "0.1"}), HasSubstr("--max-bad requires --skip-bad"));
  EXPECT_THAT(error_of({"--balance", "tokens", "--counts", "foo"}), HasSubstr("it must be equal or free\n"));
  EXPECT_THAT(run({"--foo"}).err, HasSubstr("unknown option --foo"));
}

TEST(CommandFeed, CountsSkippedLines) {
  std::string lines;
  for (int i = 0; i < 100; ++i) {
    lines += i % 10 == 3 ? "not json\n"
                         : R"({"body": "some text that is long enough to make a sample or two"})"
                           "\n";
  }
  const auto path = write_file("some_bad.jsonl", lines);
  const auto outcome =
      run({"feed", path, "--seq", "32", "--batch", "2", "--text-field", "body", "--skip-bad", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out).at("skipped_lines"), 10);
}

TEST(CommandFeed, ReadsSeveralFilesOfSeveralKinds) {
  const auto text = write_file("plain.txt", std::string(5000, 'x'));
  const auto outcome = run({"feed", corpus(), text, "--seq", "64", "--batch", "2", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_GT(Json::parse(outcome.out).at("samples"), feed_json({"--batch", "2"}).at("samples"));
}

TEST(CommandFeed, SleepsForTheComputeTimeOfEachStep) {
  const auto report = feed_json({"--mesh", "tp=2", "--steps", "10", "--compute-ms", "20"});
  EXPECT_GE(report.at("seconds"), 0.2);
}

Variables torchrun(int rank, int size, int port) {
  const auto number = [](int value) { return std::to_string(value); };
  return {{"RANK", number(rank)},        {"WORLD_SIZE", number(size)},       {"LOCAL_RANK", number(rank)},
          {"MASTER_PORT", number(port)}, {"LOCAL_WORLD_SIZE", number(size)}, {"MASTER_ADDR", "127.0.0.1"}};
}

TEST(CommandFeed, JoinsALaunchedJob) {
  const auto arguments = feed_arguments({"--mesh", "dp=1,tp=2", "--json"});
  Command second(arguments, torchrun(1, 2, 29517));
  Command first(arguments, torchrun(0, 2, 29517));
  const auto told = first.wait();
  const auto quiet = second.wait();
  ASSERT_EQ(told.status, 0) << told.err;
  EXPECT_EQ(quiet.status, 0) << quiet.err;
  EXPECT_EQ(quiet.out, "");
  const auto here = feed_json({"--mesh", "dp=1,tp=2"});
  EXPECT_EQ(content_of(Json::parse(told.out)), content_of(here));
}

TEST(CommandFeed, RanksOfALaunchedJobAreDataParallelByDefault) {
  Command second(feed_arguments({"--json"}), torchrun(1, 2, 29518));
  Command first(feed_arguments({"--json"}), torchrun(0, 2, 29518));
  const auto told = first.wait();
  ASSERT_EQ(told.status, 0) << told.err;
  EXPECT_EQ(Json::parse(told.out).at("mesh"), "dp=2");
  EXPECT_EQ(second.wait().status, 0);
}

}  // namespace
}  // namespace levada::test
