#include "levada/cli/cluster.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "levada/base/json.h"
#include "levada/base/refusal_testing.h"
#include "levada/engine/joined/joined.h"
#include "levada/engine/joined/route.h"

namespace levada::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ParseHosts, AcceptsHostsAndRanksPerHost) {
  EXPECT_EQ(parse_hosts("64x8"), std::pair(64, 8));
  EXPECT_EQ(parse_hosts("1x1"), std::pair(1, 1));
  EXPECT_EQ(parse_hosts("8192x8"), std::pair(8192, 8));
}

TEST(ParseHosts, RejectsOtherTexts) {
  for (const char* text : {"", "64", "x8", "64x", "64x8x2", "0x8", "64x0", "-1x8", "64X8", " 64x8", "64x8 ", "6.4x8",
                           "99999999999x8", "262145x1", "1024x1024"}) {
    EXPECT_THAT(refusal([&] { parse_hosts(text); }), StartsWith("--hosts is '" + std::string(text) + "'")) << text;
  }
}

TEST(ParseSpeed, AcceptsBitsAndBytes) {
  EXPECT_DOUBLE_EQ(parse_speed("--link", "100Gb/s"), 12.5e9);
  EXPECT_DOUBLE_EQ(parse_speed("--link", "12.5GB/s"), 12.5e9);
  EXPECT_DOUBLE_EQ(parse_speed("--link", "400Gbit/s"), 50e9);
  EXPECT_DOUBLE_EQ(parse_speed("--link", "500Mb/s"), 62.5e6);
  EXPECT_DOUBLE_EQ(parse_speed("--link", "1.6Tb/s"), 0.2e12);
  EXPECT_DOUBLE_EQ(parse_speed("--link", "3kB/s"), 3000);
  EXPECT_DOUBLE_EQ(parse_speed("--link", "8b/s"), 1);
}

TEST(ParseSpeed, RejectsOtherTexts) {
  for (const char* text : {"", "fast", "100", "100G", "100Gb", "100gb/s", "100GiB/s", "100 Gb/s", "-1Gb/s", "0Gb/s",
                           "nanGb/s", "infGb/s", "1e400Gb/s", "1b/s", "100Gb/s ", "100GGb/s"}) {
    EXPECT_THAT(refusal([&] { parse_speed("--link", text); }), StartsWith("--link is '" + std::string(text) + "'"))
        << text;
  }
}

TEST(CompareReadersOfAJob, WithoutAMeshAllRanksAreDataParallel) {
  const auto comparison = compare_readers({}, {.hosts = "3x2"});
  EXPECT_EQ(comparison.job.mesh, Mesh::parse("dp=6"));
  EXPECT_EQ(comparison.cluster.hosts, 3);
  EXPECT_EQ(comparison.cluster.ranks_per_host, 2);
}

TEST(CompareReadersOfAJob, UsesTheConstantsFromTheOptions) {
  const auto comparison = compare_readers(
      {.mesh = "dp=2,tp=2", .batch = 2, .sequence = 16},
      {.hosts = "2x2", .link = "8Mb/s", .memory = "2MB/s", .message = "3ms", .storage = "64kB/s", .step = "20ms"});
  EXPECT_EQ(comparison.cluster, (Cluster{.hosts = 2,
                                         .ranks_per_host = 2,
                                         .link_bytes_per_s = 1e6,
                                         .copy_bytes_per_s = 2e6,
                                         .message_s = 0.003,
                                         .storage_bytes_per_s = 64e3,
                                         .stored_bytes = 2 * 16 * 4}));
  EXPECT_EQ(comparison.step_s, 0.02);
  // A batch of tokens, labels, positions and a loss mask has 2 * 16 * 28 = 896 bytes; one of the two crosses the link.
  const Cost& one = comparison.costs.front();
  EXPECT_EQ(one.link.amount, 896u);
  EXPECT_DOUBLE_EQ(one.link.seconds, 896e-6);
  EXPECT_DOUBLE_EQ(one.memory.seconds, 3 * 896 / 2e6);
  EXPECT_DOUBLE_EQ(one.messages.seconds, 0.003);
  EXPECT_DOUBLE_EQ(one.storage.seconds, 256 / 64e3);
}

TEST(CompareReadersOfAJob, EachHostSendsToAtMostDegreeHosts) {
  const auto messages = [](int degree) {
    return compare_readers({.mesh = "tp=8"}, {.hosts = "8x1", .degree = degree}).costs.front().messages.amount;
  };
  EXPECT_EQ(messages(1), 2u);  // one received and one sent
  EXPECT_EQ(messages(3), 4u);
  EXPECT_EQ(messages(7), 7u);
  EXPECT_EQ(ClusterArguments().degree, joined::Options().degree);
}

TEST(CompareReadersOfAJob, SplittingAGlobalBatchReadsTheSameAmount) {
  const auto split = compare_readers({.divide = "split"}, {.hosts = "2x2", .storage = "1GB/s"});
  const auto dealt = compare_readers({}, {.hosts = "2x2", .storage = "1GB/s"});
  EXPECT_EQ(split.costs.front().read_bytes, dealt.costs.front().read_bytes);
  EXPECT_EQ(split.costs.front().storage.amount, dealt.costs.front().storage.amount);
}

TEST(CompareReadersOfAJob, IncludesTheRequestedReaders) {
  const auto comparison = compare_readers({.mesh = "dp=2,tp=2", .readers = "tp"}, {.hosts = "2x2"});
  EXPECT_EQ(comparison.costs.back().readers.to_string(), "tp");
}

TEST(CompareReadersOfAJob, MergesChoicesWithTheSameReaders) {
  const auto comparison = compare_readers({.mesh = "dp=2,tp=2", .readers = "dp"}, {.hosts = "2x2"});
  EXPECT_THAT(comparison.to_table(), HasSubstr("dp, spread, host "));
  EXPECT_EQ(nlohmann::json::parse(comparison.to_json())["choices"][1]["same"],
            nlohmann::json::array({"spread", "host"}));
}

TEST(CompareReadersOfAJob, RejectsImpossibleClusters) {
  const auto refused = [](JobArguments job, ClusterArguments cluster) {
    return refusal([&] { compare_readers(job, cluster); });
  };
  EXPECT_THAT(refused({.mesh = "dp=2"}, {.hosts = "2x2"}), HasSubstr("the mesh dp=2 has 2 ranks, but this job has 4"));
  EXPECT_THAT(refused({}, {.hosts = "2x2", .message = "0"}), HasSubstr("--message is 0"));
  EXPECT_THAT(refused({}, {.hosts = "2x2", .message = "soon"}), HasSubstr("soon"));
  EXPECT_THAT(refused({}, {.hosts = "2x2", .message = "200"}), HasSubstr("write microseconds as 200us"));
  EXPECT_THAT(refused({}, {.hosts = "2x2", .degree = 0}), HasSubstr("--degree must be at least 1, got 0"));
  EXPECT_THAT(refused({}, {.hosts = "2x2", .step = "0s"}), HasSubstr("--step is 0s"));
  EXPECT_THAT(refused({}, {.hosts = "2x2", .memory = "10"}), HasSubstr("--memory is '10'"));
  EXPECT_THAT(refused({}, {.hosts = "2x2", .storage = "10"}), HasSubstr("--storage is '10'"));
}

TEST(CompareReadersOfAJob, PrintsATableAndJson) {
  const auto comparison = compare_readers({.mesh = "dp=4,tp=4"}, {.hosts = "8x2", .link = "1Gb/s", .step = "50ms"});
  EXPECT_THAT(comparison.to_table(), HasSubstr("dp=4,tp=4 on 8 hosts with 2 ranks each, batches of 8 x 1024 tokens"));
  EXPECT_THAT(comparison.to_table(), HasSubstr("link of host 0"));
  EXPECT_THAT(comparison.to_table(), HasSubstr("Recommended: --readers dp."));
  const auto json = nlohmann::json::parse(comparison.to_json());
  EXPECT_EQ(json["recommended"], "dp");
  EXPECT_EQ(json["link_bytes_per_s"], 125e6);
  EXPECT_EQ(json["storage_bytes_per_s"], nullptr);
  ASSERT_EQ(json["choices"].size(), 4u);
  const auto& one = json["choices"][0];
  EXPECT_EQ(one["readers"], "one");
  EXPECT_EQ(one["limit"], "link");
  EXPECT_EQ(one["seconds"], one["link"]["seconds"]);
  EXPECT_EQ(one["link"]["bytes"], 7 * 8 * 1024 * 28);  // each batch once to each other host that has ranks for it
  EXPECT_EQ(one["messages"]["messages"], 7);
  EXPECT_EQ(one["storage"]["seconds"], nullptr);
}

/// The messages that the joined engine sends between hosts.
class Routed {
 public:
  Routed(std::vector<int> host_of, int degree) : host_of_(std::move(host_of)), degree_(degree) {}

  /// Sends a message of `bytes` bytes to ranks that may include the sender.
  void carry(int from, const std::vector<int>& to, std::uint64_t bytes) {
    std::set<int> members(to.begin(), to.end());
    members.insert(from);
    for (const int rank : members) {
      for (const int next : joined::route_of(host_of_, rank, from, to, degree_).outgoing.to) {
        sent_[host_of(rank)] += bytes;
        received_[host_of(next)] += bytes;
        crossing += bytes;
        ++messages_[rank];
        ++messages_[next];
      }
    }
  }

  std::uint64_t busiest_link() const { return std::max(largest(sent_), largest(received_)); }
  std::uint64_t max_messages() const { return largest(messages_); }
  std::uint64_t crossing = 0;

 private:
  using Amounts = std::map<int, std::uint64_t>;
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  static std::uint64_t largest(const Amounts& amounts) {
    std::uint64_t most = 0;
    for (const auto& [_, amount] : amounts) most = std::max(most, amount);
    return most;
  }

  std::vector<int> host_of_;
  int degree_;
  Amounts sent_, received_;  ///< bytes by host
  Amounts messages_;         ///< by rank
};

/// Returns the messages of one step of the plan, including those among several readers.
Routed route(const Plan& plan, const std::vector<int>& host_of, int degree) {
  Routed routed(host_of, degree);
  std::set<int> reading;
  for (std::size_t i = 0; i < plan.audiences.size(); ++i) {
    std::uint64_t bytes = 0;
    for (const Move& move : plan.moves_of(static_cast<int>(i))) bytes += move.bytes;
    routed.carry(plan.audiences[i].from, plan.audiences[i].to, bytes);
    reading.insert(plan.audiences[i].from);
  }
  if (reading.size() == 1) return routed;
  std::vector<int> everybody(host_of.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  routed.carry(*reading.begin(), everybody, 0);
  for (const int reader : reading) routed.carry(reader, {*reading.begin()}, 0);
  return routed;
}

TEST(CompareReadersOfAJob, CountsTheMessagesThatTheJoinedEngineSends) {
  std::mt19937 random(11);
  for (const char* mesh : {"dp=24", "tp=24", "dp=2,tp=12", "dp=3,tp=4,pp=2", "tp=2,dp=12", "pp=2,dp=4,cp=3"}) {
    for (const char* readers : {"one", "host", "all", "dp", "tp", "pp"}) {
      const int ranks_per_host = std::vector{1, 2, 3, 4, 6, 8, 12}[random() % 7];
      const int degree = 1 + static_cast<int>(random() % 4);
      SCOPED_TRACE(fmt::format("{}, readers {}, {} ranks a host, degree {}", mesh, readers, ranks_per_host, degree));
      const auto job = parse_job({.mesh = mesh, .batch = 1, .sequence = 12});
      FanOutOptions options{.readers = Readers::parse(readers)};
      for (int rank = 0; rank < 24; ++rank) options.host_of.push_back(rank / ranks_per_host);
      const Plan plan = plan_fan_out(job.fields, job.layout, job.mesh, options);
      const Routed routed = route(plan, options.host_of, degree);
      const Cost cost = cost_of(plan, options.readers,
                                {.hosts = 24 / ranks_per_host, .ranks_per_host = ranks_per_host, .degree = degree});
      EXPECT_EQ(cost.link.amount, routed.busiest_link());
      EXPECT_EQ(cost.messages.amount, routed.max_messages());
      EXPECT_EQ(cost.crossing_bytes, routed.crossing);
    }
  }
}

}  // namespace
}  // namespace levada::cli
