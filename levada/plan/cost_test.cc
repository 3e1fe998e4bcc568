#include "levada/plan/cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/error.h"
#include "levada/base/refusal_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

/// A batch of 1,000 bytes.
const std::vector<Field> thousand_bytes = {{"tokens", dtypes::int64, {1, 125}}};

Cost cost(std::string_view mesh_text, std::string_view readers_text, const Cluster& cluster,
          const Layout& layout = layouts::data_parallel(), Divide divide = Divide::deal) {
  const Mesh mesh = Mesh::parse(mesh_text);
  FanOutOptions options{.readers = Readers::parse(readers_text), .divide = divide};
  for (int rank = 0; rank < mesh.size(); ++rank) options.host_of.push_back(rank / cluster.ranks_per_host);
  return cost_of(plan_fan_out(thousand_bytes, layout, mesh, options), options.readers, cluster);
}

std::vector<std::string> choices(std::string_view mesh, const Cluster& cluster,
                                 const std::vector<Readers>& others = {}) {
  std::vector<std::string> names;
  for (const Cost& each :
       compare_readers(thousand_bytes, layouts::data_parallel(), Mesh::parse(mesh), Divide::deal, cluster, others)) {
    names.push_back(each.readers.to_string());
  }
  return names;
}

TEST(Cost, BatchForAllCrossesToEachOtherHostOnce) {
  const Cost one = cost("tp=6", "one", {.hosts = 3, .ranks_per_host = 2});
  EXPECT_EQ(one.num_readers, 1);
  EXPECT_EQ(one.read_bytes, 1000u);
  EXPECT_EQ(one.crossing_bytes, 2000u);
  EXPECT_EQ(one.link.amount, 2000u);  // out of host 0
  EXPECT_EQ(one.link.host, 0);
  EXPECT_EQ(one.memory.amount, 3000u);  // one batch made, two sent
  EXPECT_EQ(one.messages.amount, 2u);
}

TEST(Cost, BatchPerRankCrossesToEachRankOfOtherHosts) {
  const Cost one = cost("dp=6", "one", {.hosts = 3, .ranks_per_host = 2});
  EXPECT_EQ(one.read_bytes, 6000u);
  EXPECT_EQ(one.crossing_bytes, 4000u);
  EXPECT_EQ(one.link.amount, 4000u);
  EXPECT_EQ(one.memory.amount, 10000u);  // six made, four sent
  EXPECT_EQ(one.messages.amount, 4u);
}

TEST(Cost, ReaderPerHostSendsOnlyAgreementMessages) {
  const Cost host = cost("dp=6", "host", {.hosts = 3, .ranks_per_host = 2});
  EXPECT_EQ(host.num_readers, 3);
  EXPECT_EQ(host.read_bytes, 6000u);
  EXPECT_EQ(host.crossing_bytes, 0u);
  EXPECT_EQ(host.memory.amount, 2000u);
  EXPECT_EQ(host.messages.amount, 4u);  // rank 0 gets reports of two readers and notifies two hosts
}

TEST(Cost, EveryRankReadingRereadsSharedBatches) {
  const Cost all = cost("tp=6", "all", {.hosts = 3, .ranks_per_host = 2});
  EXPECT_EQ(all.num_readers, 6);
  EXPECT_EQ(all.read_bytes, 6000u);
  EXPECT_EQ(all.memory.amount, 2000u);
  EXPECT_EQ(all.messages.amount, 6u);  // four readers' reports, and two hosts to notify
}

TEST(Cost, ReadersAlongAnAxisSendWithinTheirCoordinate) {
  // dp 0 is on hosts 0 and 1, dp 1 on hosts 2 and 3.
  const Cost dp = cost("dp=2,tp=4", "dp", {.hosts = 4, .ranks_per_host = 2});
  EXPECT_EQ(dp.num_readers, 2);
  EXPECT_EQ(dp.read_bytes, 2000u);
  EXPECT_EQ(dp.crossing_bytes, 2000u);
  EXPECT_EQ(dp.link.amount, 1000u);
  EXPECT_EQ(dp.messages.amount, 5u);  // a batch, the other reader's report, and three hosts to notify
}

TEST(Cost, ManyHostsAreReachedThroughATree) {
  const Cost one = cost("tp=36", "one", {.hosts = 18, .ranks_per_host = 2});
  EXPECT_EQ(one.link.amount, 16000u);  // the 17th other host gets it from the first
  EXPECT_EQ(one.crossing_bytes, 17000u);
  EXPECT_EQ(one.messages.amount, 16u);
}

TEST(Cost, EachAudienceHasItsOwnTree) {
  const Cost one = cost("dp=2,tp=8", "one", {.hosts = 8, .ranks_per_host = 2, .degree = 2});
  // dp 0 is on hosts 0 to 3: 0 sends to 1 and 2, 1 to 3. dp 1 is on 4 to 7: 0 sends to 4 and 5, 4 to 6 and 7.
  EXPECT_EQ(one.link.amount, 4000u);
  EXPECT_EQ(one.crossing_bytes, 7000u);
  EXPECT_EQ(one.messages.amount, 4u);
}

TEST(Cost, HostsWithOneRankAreReachedThroughATree) {
  const Cost one = cost("tp=18", "one", {.hosts = 18, .ranks_per_host = 1});
  EXPECT_EQ(one.link.amount, 16000u);
  EXPECT_EQ(one.crossing_bytes, 17000u);
  EXPECT_EQ(one.messages.amount, 16u);
}

TEST(Cost, CutBatchIsWrittenTwice) {
  Layout halves;
  halves.otherwise = {Shard{"tp", 1}};
  const std::vector<Field> fields = {{"tokens", dtypes::int64, {1, 126}}};  // 1,008 bytes
  const Plan plan = plan_fan_out(fields, halves, Mesh::parse("tp=2"), {});
  const Cost one = cost_of(plan, {}, {.hosts = 1, .ranks_per_host = 2});
  EXPECT_EQ(one.memory.amount, 2016u);
  EXPECT_EQ(one.link.amount, 0u);
  EXPECT_EQ(one.messages.amount, 0u);
}

TEST(Cost, BusiestLinkCanBeThatOfAReceivingHost) {
  // Two readers on hosts 0 and 1 each send a batch to host 2.
  Plan plan{Mesh::parse("dp=3"), thousand_bytes, {{0, {0, 2}, 0}, {1, {1, 2}, 1}}, {}};
  plan.moves = {{0, 0, Region(Shape{1, 125}), 1000}, {0, 1, Region(Shape{1, 125}), 1000}};
  const Cost both = cost_of(plan, {}, {.hosts = 3, .ranks_per_host = 1});
  EXPECT_EQ(both.link.amount, 2000u);
  EXPECT_EQ(both.link.host, 2);
}

TEST(Cost, IsTheTimeOfTheSlowestResource) {
  Cluster cluster{.hosts = 2,
                  .ranks_per_host = 2,
                  .link_bytes_per_s = 1000,
                  .copy_bytes_per_s = 3000,
                  .message_s = 0.25,
                  .storage_bytes_per_s = 200,
                  .stored_bytes = 100};
  const auto one = [&] { return cost("dp=4", "one", cluster); };
  EXPECT_DOUBLE_EQ(one().link.seconds, 2);        // 2,000 bytes
  EXPECT_DOUBLE_EQ(one().memory.seconds, 2);      // 6,000 bytes
  EXPECT_DOUBLE_EQ(one().messages.seconds, 0.5);  // two
  EXPECT_DOUBLE_EQ(one().storage.seconds, 2);     // 400 bytes
  cluster.link_bytes_per_s = 500;
  EXPECT_DOUBLE_EQ(one().seconds(), 4);
  EXPECT_EQ(one().limit(), Limit::link);
  cluster.copy_bytes_per_s = 1000;
  EXPECT_DOUBLE_EQ(one().seconds(), 6);
  EXPECT_EQ(one().limit(), Limit::memory);
  cluster.message_s = 4;
  EXPECT_DOUBLE_EQ(one().seconds(), 8);
  EXPECT_EQ(one().limit(), Limit::messages);
  cluster.storage_bytes_per_s = 40;
  EXPECT_DOUBLE_EQ(one().seconds(), 10);
  EXPECT_EQ(one().limit(), Limit::storage);
}

TEST(Cost, StorageTakesNoTimeWithoutABandwidth) {
  const Cost one = cost("dp=4", "one", {.hosts = 2, .ranks_per_host = 2, .stored_bytes = 100});
  EXPECT_EQ(one.storage.amount, 400u);
  EXPECT_EQ(one.storage.seconds, 0);
}

TEST(Cost, RejectsAMeshWithAnotherNumberOfRanks) {
  EXPECT_THAT(refusal([] { cost("dp=4", "one", {.hosts = 4, .ranks_per_host = 2}); }),
              HasSubstr("the mesh 'dp=4' has 4 ranks, but 4 hosts with 2 ranks each have 8"));
}

TEST(CompareReaders, ListsDistinctChoices) {
  EXPECT_EQ(choices("dp=8", {.hosts = 4, .ranks_per_host = 2}), (std::vector<std::string>{"one", "dp", "host"}));
  EXPECT_EQ(choices("dp=4,tp=2", {.hosts = 4, .ranks_per_host = 2}), (std::vector<std::string>{"one", "dp", "all"}));
  EXPECT_EQ(choices("tp=2", {.hosts = 1, .ranks_per_host = 2}), (std::vector<std::string>{"one", "all"}));
  EXPECT_EQ(choices("dp_replicate=2,dp_shard=4,tp=2", {.hosts = 4, .ranks_per_host = 4}),
            (std::vector<std::string>{"one", "dp_replicate", "dp_shard", "dp", "host", "all"}));
}

TEST(CompareReaders, AddsRequestedChoices) {
  const std::vector<Readers> others = {Readers::parse("dp,tp"), Readers::parse("tp")};
  EXPECT_EQ(choices("dp=4,tp=2", {.hosts = 4, .ranks_per_host = 2}, others),
            (std::vector<std::string>{"one", "dp", "all", "tp"}));
}

Cost made_up(std::string_view readers, int num_readers, std::uint64_t read_bytes, double seconds) {
  Cost made{.readers = Readers::parse(readers), .num_readers = num_readers, .read_bytes = read_bytes};
  made.link.seconds = seconds;
  return made;
}

TEST(Recommended, ReadsTheLeastAmongChoicesWithinATenthOfAStep) {
  const std::vector<Cost> costs = {made_up("one", 1, 100, 0.5), made_up("dp", 4, 100, 0.1),
                                   made_up("host", 8, 100, 0.01), made_up("all", 16, 200, 0.001)};
  EXPECT_EQ(recommended(costs, 10).readers.to_string(), "one");
  EXPECT_EQ(recommended(costs, 1).readers.to_string(), "dp");
  EXPECT_EQ(recommended(costs, 0.5).readers.to_string(), "host");
  EXPECT_EQ(recommended(costs, 0.05).readers.to_string(), "all");
}

TEST(Recommended, IsTheFastestIfNoneKeepsUp) {
  const std::vector<Cost> costs = {made_up("one", 1, 100, 0.5), made_up("host", 8, 100, 0.01),
                                   made_up("all", 16, 200, 0.02)};
  EXPECT_EQ(recommended(costs, 0.01).readers.to_string(), "host");
}

}  // namespace
}  // namespace levada
