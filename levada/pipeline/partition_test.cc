#include "levada/pipeline/open_context.h"

#include <gtest/gtest.h>

#include "levada/pipeline/graph_testing.h"

namespace levada::pipeline {
namespace {

using testing::numbers;
using testing::same;

/// Returns "ranks", "all" or "whole": the copies among which shard `name` divides.
std::string among(const Graph& graph, const std::string& name = "shard") {
  const OpenContext open_context{.among_ranks = {1, 2}, .among_all = {3, 8}};
  const Partition partition = partition_of(graph, graph.find(name), open_context);
  if (partition.count == 8) return partition.index == 3 ? "all" : "?";
  if (partition.count == 2) return partition.index == 1 ? "ranks" : "?";
  return partition.index == 0 && partition.count == 1 ? "whole" : "?";
}

TEST(Partition, IsAmongRanksBeforeAndAfterADispatch) {
  EXPECT_EQ(among(numbers().then(Shard{}).then(same()).then(Dispatch{})), "ranks");
  EXPECT_EQ(among(numbers().then(Dispatch{}).then(same()).then(Shard{})), "ranks");
}

TEST(Partition, IsAmongAllWorkersWithoutADispatch) {
  EXPECT_EQ(among(numbers().then(Shard{}).then(same())), "all");
  const Graph dealt = numbers().then(Dispatch{});
  EXPECT_EQ(among(Graph::join(Zip{}, {dealt, numbers().then(Shard{})})), "all") << "a branch next to a dispatch";
}

TEST(Partition, IsTheWholeAfterAnotherShard) {
  const Graph graph = numbers().then(Shard{}).then(Dispatch{}).then(same()).then(Shard{});
  EXPECT_EQ(among(graph), "ranks");
  EXPECT_EQ(among(graph, "shard_2"), "whole");
}

TEST(Partition, IsLeftToASourceThatDivides) {
  const Graph graph = numbers(10, {}, true).then(Shard{});
  EXPECT_TRUE(divides_at_source(graph, 1));
  EXPECT_FALSE(divides_at_source(graph, 0));
  EXPECT_FALSE(divides_at_source(numbers().then(Shard{}), 1));
  EXPECT_FALSE(divides_at_source(numbers(10, {}, true).then(same()).then(Shard{}), 2));
}

TEST(Partition, CopiesWithTheSameInputDrawAlike) {
  const Graph graph = numbers().then(Shuffle{}).then(Shard{}).then(Shuffle{});
  EXPECT_TRUE(draws_alike(graph, graph.find("shuffle")));
  EXPECT_FALSE(draws_alike(graph, graph.find("shuffle_2")));
  EXPECT_FALSE(draws_alike(numbers().then(Shuffle{}), 1)) << "nothing divides";
  EXPECT_TRUE(draws_alike(numbers().then(Shuffle{}).then(Dispatch{}), 1));
  EXPECT_TRUE(draws_alike(numbers().then(Dispatch{}).then(Shuffle{}).then(Dispatch{}), 2)) << "between two marks";
  EXPECT_TRUE(draws_alike(numbers().then(Dispatch{}).then(Shuffle{}).then(Repeat{2}), 2)) << "repeated";
  EXPECT_FALSE(draws_alike(numbers().then(Dispatch{}).then(Shuffle{}), 2)) << "the workers' own";
}

}  // namespace
}  // namespace levada::pipeline
