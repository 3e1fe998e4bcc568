// Feeds of ranks on several hosts.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/joined/hosts_testing.h"
#include "levada/feed/feed.h"
#include "levada/feed/source_testing.h"
#include "levada/tree/codec.h"

namespace levada {
namespace {

using testing::Numbered;
using testing::NumberedOptions;

/// The batches of each rank, by rank and step, as bytes.
using RankBatches = std::vector<std::vector<Bytes>>;

void feed_one(const std::shared_ptr<Engine>& engine, const Mesh& mesh, const FeedOptions& options,
              const NumberedOptions& source, RankBatches& batches) {
  Feed feed(engine, mesh, layouts::gpt(), std::make_shared<Numbered>(source), options);
  while (auto got = feed.next())
    batches[static_cast<std::size_t>(engine->info().rank)].push_back(encode_tree(got->tree()));
}

RankBatches batches_on_one_host(const Mesh& mesh, const FeedOptions& options, const NumberedOptions& source) {
  RankBatches batches(static_cast<std::size_t>(mesh.size()));
  inproc::run_ranks(mesh.size(), [&](const auto& engine) { feed_one(engine, mesh, options, source, batches); });
  return batches;
}

RankBatches batches_on_hosts(int ranks_a_host, const Mesh& mesh, const FeedOptions& options,
                             const NumberedOptions& source, std::uint64_t* crossed = nullptr) {
  RankBatches batches(static_cast<std::size_t>(mesh.size()));
  const auto body = [&](const std::shared_ptr<Engine>& engine, joined::test::Job& job) {
    feed_one(engine, mesh, options, source, batches);
    agree(*engine, {}, Deadline::after(std::chrono::seconds(30)), "test");
    if (engine->info().rank == 0 && crossed != nullptr) *crossed = job.network.crossed_bytes();
  };
  EXPECT_EQ(joined::test::run_ranks(mesh.size(), {.ranks_a_host = ranks_a_host}, body), "");
  return batches;
}

TEST(FeedBetweenHosts, DeliversTheSameAsOnOneHost) {
  for (const char* name : {"dp=6", "dp=3,tp=2", "tp=2,dp=3", "pp=2,dp=3", "cp=2,dp=3", "pp=3,cp=2"}) {
    const Mesh mesh = Mesh::parse(name);
    for (const char* readers : {"one", "all", "host", "dp"}) {
      const FeedOptions options{.batch = 2, .tail = Tail::pad, .readers = Readers::parse(readers)};
      const NumberedOptions source{.samples = 5 * mesh.data_size() * 2 + 1, .sequence = 12};
      const RankBatches expected = batches_on_one_host(mesh, options, source);
      EXPECT_EQ(expected[0].size(), 6U);
      for (const int ranks_a_host : {1, 2, 3}) {
        EXPECT_EQ(batches_on_hosts(ranks_a_host, mesh, options, source), expected)
            << name << ", read by " << readers << ", " << ranks_a_host << " ranks a host";
      }
    }
  }
}

TEST(FeedBetweenHosts, SendsABatchToEachHostOnce) {
  const Mesh mesh = Mesh::parse("tp=6");
  const NumberedOptions source{.samples = 16, .sequence = 16'384};
  const std::uint64_t all = 16 * 16'384 * (3 * sizeof(std::int64_t) + sizeof(float));
  for (const int ranks_a_host : {1, 2, 3}) {
    std::uint64_t crossed = 0;
    batches_on_hosts(ranks_a_host, mesh, {.batch = 2, .readers = Readers::parse("one")}, source, &crossed);
    const auto other_hosts = static_cast<std::uint64_t>(6 / ranks_a_host - 1);
    EXPECT_GE(crossed, other_hosts * all);
    EXPECT_LT(crossed, other_hosts * all * 102 / 100);
  }
}

}  // namespace
}  // namespace levada
