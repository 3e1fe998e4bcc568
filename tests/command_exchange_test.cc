// `levada plan --exchange`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "command_run.h"

namespace levada::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::string holders =
    R"("holders": [{"ranks": [0], "samples": {"ids": ["a", "b"],
                    "keys": {"tokens": {"dtype": "int64", "trailing": [], "seqlens": [[12], [3, 4]]}}}}])";

std::string spec(const std::string& rest) {
  return write_file("exchange.json", "{" + holders + ", " + rest + "}");
}

void expect_refusal(const std::string& path, const std::string& words) {
  const auto outcome = run({"plan", "--exchange", path});
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("levada: the exchange file"), HasSubstr(words)));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

TEST(CommandPlanExchange, ShowsThePlannedMoves) {
  const auto path = spec(R"("destinations": [{"ranks": [1, 2], "ids": ["a"]},
                            {"mesh": "dp=2,tp=2", "first": 4, "ids": [["a"], ["b"]]}])");
  const auto table = run({"plan", "--exchange", path});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("1,2,4,5"), HasSubstr("152 B  in 2 multicasts"), HasSubstr("   0   5   96 B\n")));
  const auto json = Json::parse(run({"plan", "--exchange", path, "--json"}).out);
  EXPECT_EQ(json["moved_bytes"], 152);
  EXPECT_EQ(json["lower_bound_bytes"], 152);
  EXPECT_EQ(json["busiest"], Json({{"rank", 0}, {"bytes", 152}}));
  EXPECT_EQ(json["edges"].size(), 6u);
  EXPECT_EQ(json["multicasts"][1]["ids"], Json({"b"}));
}

TEST(CommandPlanExchange, ShowsTheFirstEdgesOfMany) {
  std::string ranks = "1";
  for (int rank = 2; rank <= 60; ++rank) ranks += ", " + std::to_string(rank);
  const auto table =
      run({"plan", "--exchange", spec(R"("destinations": [{"ranks": [)" + ranks + R"(], "ids": ["b"]}])")});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("   0  50   56 B\n... and 10 more edges\n"), HasSubstr("3.3 KiB  among 61")));
}

TEST(CommandPlanExchange, AllowsAbsentKeysIfRequested) {
  const auto absent = R"("destinations": [{"ranks": [1], "ids": ["a"]}], "keys": ["values"], "allow_absent": true)";
  const auto outcome = run({"plan", "--exchange", spec(absent), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["multicasts"], Json::array());
}

TEST(CommandPlanExchange, ReportsErrorsInOneSentence) {
  expect_refusal("/nowhere/exchange.json", "/nowhere/exchange.json");
  expect_refusal(write_file("none.json", "["), "it is not JSON");
  expect_refusal(spec(R"("destination": [])"), "unknown key \"destination\"");
  expect_refusal(spec(R"("destinations": [{"ranks": [1], "ids": ["z"]}])"),
                 "sample z, key tokens is wanted on rank 1, but no rank holds it");
  expect_refusal(spec(R"("destinations": [{"ranks": [-1], "ids": ["a"]}])"), "destinations[0].ranks: expected a rank");
  expect_refusal(spec(R"("destinations": [{"mesh": "dp=2", "ids": [["a"]]}])"), "2 coordinates along the data axes");
  expect_refusal(spec(R"("destinations": [{"ranks": [1], "ids": ["a"]}], "keys": ["values"])"),
                 "sample a, key values is wanted on rank 1, but no rank holds it");
  expect_refusal(spec(R"("destinations": [], "destinations": [])"), "key \"destinations\" appears twice in one object");
  expect_refusal(spec(R"("destinations": [{"ranks": [2147483647], "ids": ["a"]}])"), "rank 2147483647");
  expect_refusal(spec(R"("destinations": [{"mesh": "dp=0", "ids": []}])"), "destinations[0]: axis dp");
  expect_refusal(write_file("samples.json", R"({"holders": [{"ranks": [0], "samples": {}}], "destinations": []})"),
                 "holders[0]: samples JSON: the whole: \"ids\" is missing");
  EXPECT_EQ(run({"plan", "--exchange", spec(R"("destinations": [])"), "--mesh", "dp=2"}).status, 2);
}

}  // namespace
}  // namespace levada::test
