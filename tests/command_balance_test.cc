// `levada feed` and `levada plan` with balanced steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "command_run.h"

namespace levada::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

const std::string& corpus() {
  static const std::string path = make_corpus("corpus.jsonl", 300);
  return path;
}

/// Returns the arguments of a subcommand that reads each document as one sample.
std::vector<std::string> arguments(const std::string& subcommand, const std::vector<std::string>& more) {
  std::vector<std::string> all = {subcommand, corpus(), "--pack", "documents", "--seq", "512", "--batch", "8"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Json json_of(const std::string& subcommand, std::vector<std::string> more) {
  more.emplace_back("--json");
  const auto outcome = run(arguments(subcommand, more));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return Json::parse(outcome.out);
}

TEST(CommandBalance, FeedsTheStepsThatPlanPredicts) {
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{"--balance", "flops(hidden=64)"},
        {"--max-tokens", "1024"},
        {"--balance", "flops", "--max-tokens", "2000", "--counts", "equal", "--micro-order", "long-first"}}) {
    auto options = how;
    options.insert(options.end(), {"--mesh", "dp=4", "--shuffle", "--epochs", "2"});
    const auto predicted = json_of("plan", options);
    options.insert(options.end(), {"--engine", "inproc"});
    const auto fed = json_of("feed", options);
    EXPECT_EQ(fed.at("balance"), predicted);
    EXPECT_EQ(fed.at("samples"), predicted.at("samples"));
    EXPECT_EQ(fed.at("steps"), predicted.at("steps"));
    EXPECT_EQ(fed.at("tokens"), predicted.at("tokens"));
    for (const auto& rank : fed.at("ranks")) EXPECT_EQ(rank.at("batches"), predicted.at("micro_batches"));
    EXPECT_GE(predicted.at("steps"), 15);
    EXPECT_GE(predicted.at("busiest"), predicted.at("bound"));
    EXPECT_LT(predicted.at("busiest").get<double>(), 1.1 * predicted.at("bound").get<double>());
    EXPECT_GT(predicted.at("busiest_unbalanced"), predicted.at("busiest"));
  }
}

TEST(CommandBalance, DividesMoreEvenlyThanTheOriginalOrder) {
  const auto outcome = run(arguments("plan", {"--mesh", "dp=4,tp=2", "--balance", "flops"}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(StartsWith("samples         busiest rank  of the bound  of the mean\n"),
                                 HasSubstr("steps of 32 samples"), HasSubstr("over 4 data-parallel ranks"),
                                 HasSubstr("x less time than with samples in their order")));
}

TEST(CommandBalance, ResumesAStateOnAnotherMesh) {
  const auto state = scratch() + "/state";
  const std::vector<std::string> how = {"--balance", "flops", "--max-tokens", "1500"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), how.begin(), how.end());
    return json_of("feed", more);
  };
  const auto whole = with({"--mesh", "dp=2"});
  const auto first = with({"--mesh", "dp=2", "--steps", "3", "--save-state", state});
  auto rest = arguments("feed", {"--mesh", "dp=4", "--load-state", state, "--json"});
  rest.insert(rest.end(), how.begin(), how.end());
  std::replace(rest.begin(), rest.end(), std::string("8"), std::string("4"));
  const auto second = run(rest);
  ASSERT_EQ(second.status, 0) << second.err;
  const auto report = Json::parse(second.out);
  EXPECT_EQ(first.at("samples").get<int>() + report.at("samples").get<int>(), whole.at("samples"));
  EXPECT_EQ(first.at("tokens").get<int>() + report.at("tokens").get<int>(), whole.at("tokens"));
}

TEST(CommandBalance, RejectsWeightsForACorpus) {
  const auto outcome = run(arguments("feed", {"--mesh", "dp=2", "--balance", "weights"}));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("a corpus has no weights"));
}

TEST(CommandBalance, ShowsTheWorkInTextAndOnThePage) {
  const auto page = scratch() + "/page.html";
  const auto outcome =
      run(arguments("feed", {"--mesh", "dp=2", "--balance", "flops", "--max-tokens", "1024", "--report", page}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("work   the busiest rank has 1.0"), HasSubstr("micro-batches per step")));
  std::stringstream html;
  html << std::ifstream(page).rdbuf();
  EXPECT_THAT(html.str(), HasSubstr("\"balance\":{"));
}

TEST(CommandBalance, PredictsTheTimeOfRanksThatWaitInEachMicroBatch) {
  const auto waiting = [](const std::string& wait) {
    const auto outcome = run(
        arguments("plan", {"--mesh", "dp=2", "--balance", "flops", "--max-tokens", "1024", "--wait", wait, "--json"}));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const auto report = Json::parse(outcome.out);
    EXPECT_GE(report.at("waiting"), report.at("waiting_bound"));
    EXPECT_GE(report.at("waiting"), report.at("busiest"));
    return report.at("waiting").get<double>();
  };
  EXPECT_LT(waiting("micro"), waiting("step"));
  const auto table =
      run(arguments("plan", {"--mesh", "dp=2", "--balance", "flops", "--max-tokens", "1024", "--wait", "micro"}));
  EXPECT_THAT(table.out, HasSubstr("if ranks wait in each micro-batch, a step takes "));
}

TEST(CommandBalance, CutsEachDocumentOverTheRanksThatItNeeds) {
  const std::vector<std::string> how = {"--mesh",   "dp=2,cp=2", "--balance", "flops", "--max-tokens", "128",
                                        "--pad-to", "8",         "--max-cp",  "4",     "--wait",       "micro"};
  const auto predicted = json_of("plan", how);
  EXPECT_EQ(predicted.at("ranks"), 4);
  EXPECT_EQ(predicted.at("cp"), 2);
  EXPECT_TRUE(predicted.at("in_order_s").is_null()) << "two ranks cannot hold a document of 512 tokens";
  EXPECT_GT(predicted.at("tokens_by_size").size(), 1u);
  EXPECT_GE(predicted.at("dynamic_s"), predicted.at("bound_s"));
  auto options = how;
  options.insert(options.end(), {"--engine", "inproc"});
  const auto fed = json_of("feed", options);
  for (const auto* name : {"steps", "samples", "tokens"}) EXPECT_EQ(fed.at(name), predicted.at(name)) << name;
  for (const auto& rank : fed.at("ranks")) EXPECT_EQ(rank.at("batches"), predicted.at("dynamic_micro_batches"));
  EXPECT_EQ(fed.at("balance").at("ranks"), 4);
}

TEST(CommandBalance, AdvisesForOrAgainstContextParallelismByDocument) {
  const auto table_of = [](const std::string& mesh, const std::string& max_tokens) {
    const auto outcome = run(arguments(
        "plan", {"--mesh", mesh, "--balance", "flops", "--max-tokens", max_tokens, "--pad-to", "8", "--max-cp", "4"}));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_THAT(table_of("dp=4", "128"),
              HasSubstr("cp=1 cannot hold these samples with 128 tokens on a rank: use max_cp=4"));
  EXPECT_THAT(table_of("dp=4", "4096"), AllOf(StartsWith("context parallelism "), HasSubstr("cp=1, balanced"),
                                              HasSubstr("max_cp=4"), HasSubstr("over 4 dp x cp ranks")));
}

TEST(CommandBalance, RejectsInvalidOptions) {
  const auto expect = [](const std::string& subcommand, const std::vector<std::string>& more, int status,
                         const std::string& words) {
    const auto outcome = run(arguments(subcommand, more));
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(words));
  };
  for (const char* subcommand : {"feed", "plan"}) {
    expect(subcommand, {"--mesh", "dp=2", "--balance", "work"}, 2, "work");
    expect(subcommand, {"--mesh", "dp=2", "--balance", "flops(linear=-1,quadratic=1)"}, 2, "linear");
    expect(subcommand, {"--mesh", "dp=2", "--balance", "flops", "--tail", "pad"}, 2, "--tail is pad");
    expect(subcommand, {"--mesh", "dp=2", "--max-tokens", "-1"}, 2, "--max-tokens is -1");
    expect(subcommand, {"--mesh", "dp=2", "--max-tokens", "511"}, 2, "--seq is 512 and --max-tokens 511, so a sample");
    expect(subcommand, {"--mesh", "dp=2", "--counts", "equal"}, 2, "--balance or --max-tokens");
    expect(subcommand, {"--mesh", "dp=2", "--balance", "flops", "--counts", "some"}, 2, "--counts");
    expect(subcommand, {"--mesh", "dp=2", "--balance", "flops", "--micro-order", "random"}, 2, "as-read");
    expect(subcommand, {"--mesh", "dp=2", "--balance", "flops", "--wait", "end"}, 2, "step");
    expect(subcommand, {"--mesh", "dp=2", "--wait", "micro"}, 2, "--balance or --max-tokens");
    expect(subcommand, {"--mesh", "dp=4", "--max-cp", "4"}, 2, "--balance or --max-tokens");
    expect(subcommand, {"--mesh", "dp=4", "--balance", "flops", "--max-tokens", "512", "--max-cp", "3"}, 2,
           "power of two");
    expect(subcommand, {"--mesh", "dp=4", "--balance", "flops", "--max-tokens", "64", "--max-cp", "4"}, 2,
           "--max-cp, or lower");
    expect(subcommand, {"--mesh", "dp=4", "--balance", "flops", "--max-tokens", "512", "--max-cp", "4"}, 2,
           "choose a multiple of 8 (pad_to=, --pad-to)");
    expect(subcommand,
           {"--mesh", "dp=2", "--balance", "flops", "--max-tokens", "512", "--max-cp", "4", "--pad-to", "8"}, 2,
           "max_cp must be a power of two that divides the 2 dp x cp ranks");
    expect(subcommand, {"--mesh", "dp=2", "--max-tokens", "1024", "--counts", "equal", "--wait", "micro"}, 2,
           "counts must be free");
  }
  expect("feed", {"--mesh", "dp=2", "--balance", "flops", "--divide", "split"}, 2, "dealt");
  expect("plan", {"--mesh", "dp=2"}, 2, "add --balance or --max-tokens");
  expect("plan", {"--hosts", "2x8", "--balance", "flops"}, 2, "--hosts");
  const auto without_data = run({"plan", "--mesh", "dp=2", "--balance", "flops"});
  EXPECT_EQ(without_data.status, 2);
  EXPECT_THAT(without_data.err, HasSubstr("--balance applies to data: add a PATH"));
}

}  // namespace
}  // namespace levada::test
