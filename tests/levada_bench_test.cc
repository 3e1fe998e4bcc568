// The program levada_bench.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "command_run.h"

namespace levada::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

TEST(LevadaBench, ComparesReductionsWithOneLargeOne) {
  for (const char* source : {"host", "arena"}) {
    const auto outcome = run({"reduce-scatter", "--ranks", "2", "--sizes", "3x4KiB,1MiB,0", "--cap-mb", "1", "--rounds",
                              "2", "--source", source, "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const auto json = Json::parse(outcome.out);
    EXPECT_EQ(json["inputs"], 5);
    EXPECT_EQ(json["bytes"], 2 * (3 * 4096 + (1 << 20)));
    EXPECT_EQ(json["flushes"], 2) << "the large one, and a bucket of the others";
    EXPECT_GT(json["median_us"], 0);
  }
  const auto sizes = write_file("sizes", "4096\n8192\n");
  const auto outcome = run({"reduce-scatter", "--engine", "inproc", "--sizes", sizes, "--rounds", "1"});
  EXPECT_THAT(outcome.out, HasSubstr("reduce-scatter of 2 inputs, 48.0 KiB on each of 4 ranks over inproc"))
      << outcome.err;
}

TEST(LevadaBenchDispatch, MeasuresItemsThatArriveInOrder) {
  for (const char* engine : {"shm", "inproc"}) {
    for (const char* bytes : {"8", "65536"}) {
      const auto outcome =
          run({"dispatch", "--workers", "2", "--item-bytes", bytes, "--seconds", "0.05", "--engine", engine, "--json"});
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      const auto json = nlohmann::json::parse(outcome.out);
      EXPECT_EQ(json["op"], "dispatch");
      EXPECT_EQ(json["workers"], 2);
      EXPECT_GT(json["items_per_s"], 0);
      EXPECT_GT(json["wakeups_per_item"], 0);
      EXPECT_GE(json["copies_per_byte"], 1.9);
    }
  }
}

TEST(LevadaBenchDispatch, RefusesImpossibleMeasurements) {
  EXPECT_EQ(run({"dispatch", "--workers", "0"}).status, 2);
  EXPECT_EQ(run({"dispatch", "--item-bytes", "9"}).status, 2);
  EXPECT_EQ(run({"dispatch", "--seconds", "0"}).status, 2);
}

TEST(LevadaBench, RefusesImpossibleReductions) {
  const auto expect = [](const std::vector<std::string>& options, const std::string& words) {
    std::vector<std::string> arguments = {"reduce-scatter"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const auto outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(words));
  };
  expect({"--sizes", "many"}, "many is neither sizes, such as 256x4KiB, nor a file of them");
  expect({"--sizes", "4KB"}, "4KB is neither sizes");
  expect({"--sizes", "3"}, "3 bytes are no whole numbers of 4 bytes");
  expect({"--sizes", "4x0"}, "all inputs together have no bytes");
  expect({"--sizes", "9000000x4"}, "more than 1000000 inputs");
  expect({"--sizes", write_file("bad", "12\nx\n")}, "x of ");
  expect({"--rounds", "0"}, "--rounds is 0");
  expect({"--cap-mb", "-1"}, "--cap-mb is -1");
  expect({"--source", "disk"}, "--source is disk");
  expect({"--ranks", "0"}, "--ranks is 0");
  expect({"--engine", "tcp"}, "there is no engine tcp");
}

TEST(LevadaBenchExchange, MeasuresAndChecksReceivedSamples) {
  const auto outcome = run({"exchange", "--ranks", "4", "--from", "dp=4", "--to", "dp=2,tp=2", "--samples", "32",
                            "--bytes", "100000", "--rounds", "3", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto json = Json::parse(outcome.out);
  for (const char* key : {"op", "engine", "ranks", "samples", "payload_bytes", "moved_bytes", "lower_bound_bytes",
                          "wire_bytes", "messages", "plan_ms", "median_us", "p99_us"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["moved_bytes"], json["lower_bound_bytes"]);
  EXPECT_GT(json["wire_bytes"], json["moved_bytes"]);
}

TEST(LevadaBenchExchange, PlansMeshesThatNoMachineStarts) {
  const auto outcome = run({"exchange", "--from", "dp=256", "--to", "dp=64,tp=4", "--samples", "2000", "--rounds", "2",
                            "--plan-only", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto json = Json::parse(outcome.out);
  EXPECT_EQ(json["ranks"], 256);
  EXPECT_GT(json["multicasts"], 1000);
  EXPECT_EQ(run({"exchange", "--ranks", "2", "--from", "dp=4"}).status, 2);
  EXPECT_EQ(run({"exchange", "--from", "dp=x", "--plan-only"}).status, 2);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(LevadaBenchExchange, PlansAMillionSamplesInLessThanAGigabyte) {
  const auto outcome = run({"exchange", "--from", "dp=1024", "--to", "dp=512,tp=2", "--samples", "1000000", "--rounds",
                            "2", "--plan-only", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto json = Json::parse(outcome.out);
  EXPECT_EQ(json["moved_bytes"], json["lower_bound_bytes"]);
  EXPECT_LT(json["peak_bytes"], 1'000'000'000);
}
#endif

}  // namespace
}  // namespace levada::test
