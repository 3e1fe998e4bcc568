// A pipeline as the source of a feed: every rank of a mesh gets its part, and a state resumes in the middle of an
// epoch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/joined/hosts_testing.h"
#include "levada/feed/feed.h"
#include "levada/pipeline/item_sources.h"
#include "levada/pipeline/open_context.h"
#include "levada/pipeline/open_graph.h"
#include "levada/pipeline/pipeline_source.h"
#include "levada/pipeline/tree_item_traits.h"

namespace levada::pipeline {
namespace {

constexpr std::int64_t items = 53, epochs = 2;

/// Makes a source of shuffled numbers as samples {ids: [3 i, 3 i + 1]}, without every third number.
std::shared_ptr<PipelineSource> make_source() {
  const auto number = [](const Item& item) { return std::get<std::int64_t>(std::get<Tree>(item).leaf()); };
  const Filter most{[=](const Item& item) { return number(item) % 3 != 0; }};
  const Map sample{[=](const Item& item) -> Item {
    return Tree::dict({{"ids", Tensor::of<std::int64_t>({2}, {3 * number(item), 3 * number(item) + 1})}});
  }};
  struct Kept {
    Graph graph;
    TreeItemTraits traits;
    Counts counts;
  };
  const Graph graph = Graph::source(range(0, items)).then(Shuffle{.buffer = 8}).then(most).then(sample);
  const std::shared_ptr<Kept> kept(new Kept{graph, {}, Counts(graph.stages().size())});
  const auto open_epoch = [kept](std::int64_t epoch) {
    return open(kept->graph, kept->graph.end(),
                {.traits = kept->traits,
                 .open_context = make_open_context(7, epoch, {}),
                 .process = "reader",
                 .counts = kept->counts});
  };
  return std::make_shared<PipelineSource>(open_epoch, PipelineSourceOptions{.epochs = epochs});
}

/// The batches that the ranks of dp=2,tp=2 receive from a cursor on.
struct Given {
  std::vector<std::vector<std::vector<std::int64_t>>> ids;  ///< ids by rank, then step
  std::vector<Bytes> cursors;                               ///< cursors by step
};
/// `ranks_a_host` of 4 means one host.
Given run(const Bytes& cursor = {}, int ranks_a_host = 4) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  Given run{.ids = std::vector<std::vector<std::vector<std::int64_t>>>(4), .cursors = {}};
  const auto body = [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    const auto source = rank == 0 ? make_source() : nullptr;
    const std::int64_t first = source && !cursor.empty() ? source->resume(cursor) : 0;
    ByteWriter writer;
    writer.put(first);
    const auto said = agree(*engine, writer.view(), Deadline::never(), "the test");
    Feed feed(engine, mesh, layouts::data_parallel(), source,
              {.batch = 4, .first_sample = ByteReader(said.front()).get<std::int64_t>()});
    while (const auto batch = feed.next()) {
      const auto ids = batch->tensor("ids").as<std::int64_t>();
      run.ids[static_cast<std::size_t>(rank)].emplace_back(ids.begin(), ids.end());
      if (rank == 0) run.cursors.push_back(batch->cursor);
    }
  };
  if (ranks_a_host == 4) {
    inproc::run_ranks(4, body);
    return run;
  }
  const auto on_hosts = [&](const auto& engine, joined::test::Job&) { body(engine); };
  EXPECT_EQ(joined::test::run_ranks(4, {.ranks_a_host = ranks_a_host}, on_hosts), "");
  return run;
}

TEST(PipelineFeed, DeliversToEveryRankOfAMeshItsPartOfEachBatch) {
  const Given all = run();
  const std::int64_t samples = epochs * (items - (items + 2) / 3);
  ASSERT_EQ(static_cast<std::int64_t>(all.cursors.size()), samples / 8);
  EXPECT_EQ(all.ids[0], all.ids[1]);
  EXPECT_EQ(all.ids[2], all.ids[3]);
  HeapMemory memory;
  const auto source = make_source();
  for (std::size_t step = 0; step < all.cursors.size(); ++step) {
    for (const std::size_t rank : {0U, 2U}) {
      const auto batch = source->read(static_cast<std::int64_t>(8 * step + 2 * rank), 4, memory);
      const auto ids = batch->tensor("ids").as<std::int64_t>();
      EXPECT_EQ(all.ids[rank][step], std::vector(ids.begin(), ids.end())) << rank << ", step " << step;
    }
  }
}

TEST(PipelineFeed, ResumesWithTheNextBatchAfterEveryStep) {
  const Given all = run();
  for (std::size_t step = 0; step < all.cursors.size(); ++step) {
    const Given rest = run(all.cursors[step]);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const auto& ids = all.ids[rank];
      EXPECT_EQ(rest.ids[rank], std::vector(ids.begin() + static_cast<std::ptrdiff_t>(step) + 1, ids.end())) << step;
    }
  }
}

TEST(PipelineFeed, DeliversEqualBatchesOnSeveralHosts) {
  const Given all = run();
  for (const int ranks_a_host : {1, 2, 3}) {
    const Given on_hosts = run({}, ranks_a_host);
    EXPECT_EQ(on_hosts.ids, all.ids) << ranks_a_host << " a host";
    EXPECT_EQ(run(on_hosts.cursors[2], ranks_a_host).ids, run(all.cursors[2]).ids);
  }
}

}  // namespace
}  // namespace levada::pipeline
