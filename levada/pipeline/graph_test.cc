#include "levada/pipeline/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/refusal_testing.h"
#include "levada/pipeline/graph_testing.h"

namespace levada::pipeline {
namespace {

using testing::all;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::numbers;
using testing::same;

std::vector<std::string> names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Stage& stage : graph.stages()) names.push_back(stage.name);
  return names;
}

TEST(Graph, NamesStagesAfterTheirOperationAndNumbersThem) {
  const Graph graph = numbers().then(same()).then(Batch{4}, "four").then(same()).then(same());
  EXPECT_THAT(names(graph), ElementsAre("source", "map", "four", "map_2", "map_3"));
  EXPECT_EQ(graph.find("map_2"), 3);
  EXPECT_EQ(graph.end(), 4);
  EXPECT_THAT(graph.stages()[3].inputs, ElementsAre(2));
}

TEST(Graph, IsUnchangedByBuildingOnIt) {
  const Graph graph = numbers();
  const Graph longer = graph.then(same());
  EXPECT_EQ(graph.stages().size(), 1);
  EXPECT_EQ(longer.stages().size(), 2);
}

TEST(Graph, JoinsBranchesOfOneForkIntoOneGraph) {
  const auto branches = numbers().then(same()).fork(2, 7);
  const Graph graph = Graph::join(Zip{}, {branches[0].then(all()), branches[1]});
  EXPECT_THAT(names(graph), ElementsAre("source", "map", "fork", "branch", "filter", "branch_2", "zip"));
  EXPECT_THAT(graph.stages()[5].inputs, ElementsAre(2));
  EXPECT_THAT(graph.stages()[6].inputs, ElementsAre(4, 5));
  EXPECT_EQ(std::get<Fork>(graph.stages()[2].operation).buffer, 7);
  EXPECT_EQ(std::get<Branch>(graph.stages()[5].operation).index, 1);
}

TEST(Graph, RenumbersEqualNamesOfJoinedGraphs) {
  const Graph graph = Graph::join(Zip{}, {numbers().then(same()), numbers().then(same()), numbers(10, "third")});
  EXPECT_THAT(names(graph), ElementsAre("source", "map", "source_2", "map_2", "third", "zip"));
}

TEST(Graph, KeepsNamesGivenByCallers) {
  const Graph graph = Graph::join(Zip{}, {numbers(), numbers(10, "source"), numbers(10, "source_2")});
  EXPECT_THAT(names(graph), ElementsAre("source_3", "source", "source_2", "zip"));
}

TEST(Graph, RejectsANameThatIsTaken) {
  const Graph graph = numbers(10, "tokens");
  EXPECT_THAT(refusal([&] { graph.then(same(), "tokens"); }),
              HasSubstr("stage \"tokens\": another stage has that name"));
  EXPECT_THAT(refusal([&] { Graph::join(Zip{}, {graph, numbers(3, "tokens")}); }), HasSubstr("\"tokens\": another"));
  EXPECT_THAT(refusal([&] { numbers().then(same(), "source"); }), HasSubstr("\"source\": another stage"));
}

TEST(Graph, RejectsTwoReadersOfOneStage) {
  const Graph graph = numbers();
  EXPECT_EQ(refusal([&] {
              Graph::join(Zip{}, {graph, graph.then(same())});
            }),
            "stage \"source\": its items go to \"map\" and to \"zip\"; fork it and give each a branch");
  EXPECT_THAT(refusal([&] { Graph::join(Zip{}, {graph, graph}); }), HasSubstr("go to \"zip\" and to \"zip\""));
  const auto branches = graph.fork();
  EXPECT_THAT(refusal([&] { Graph::join(Zip{}, {branches[1], branches[1].then(same())}); }), HasSubstr("\"branch\""));
}

TEST(Graph, RejectsBranchesWithoutAFork) {
  const Graph forked = numbers().then(Fork{.branches = 2});
  EXPECT_THAT(refusal([&] { numbers().then(Branch{0}); }), HasSubstr("its input \"source\" is not a fork"));
  EXPECT_THAT(refusal([&] { forked.then(Branch{2}); }), HasSubstr("has 2 branches, so there is no branch 2"));
  EXPECT_THAT(refusal([&] { forked.then(same()); }), HasSubstr("let it read a branch"));
}

TEST(Graph, RejectsOperationsWithTheWrongInputs) {
  EXPECT_THAT(refusal([] { Graph::join(Zip{}, {}); }), HasSubstr("\"zip\": it has 0 inputs"));
  EXPECT_THAT(refusal([] { Graph::join(Batch{2}, {numbers(), numbers()}); }), HasSubstr("but needs one stage"));
  EXPECT_THAT(refusal([] { numbers().then(Source{std::make_shared<testing::Numbers>(1)}); }), HasSubstr("no stages"));
}

TEST(Graph, RejectsInvalidNumbersAndFunctions) {
  EXPECT_THAT(refusal([] { numbers().then(Batch{0}, "b"); }), HasSubstr("stage \"b\": size is 0; it is at least 1"));
  EXPECT_THAT(refusal([] { numbers().then(Prefetch{std::int64_t{1} << 40}, "p"); }), HasSubstr("it must be at most"));
  EXPECT_THAT(refusal([] {
                Graph::join(Interleave{.weights = {1e308, 1e308}}, {numbers(), numbers()});
              }),
              HasSubstr("the sum of its weights is not finite"));
  EXPECT_THAT(refusal([] { numbers().then(Shuffle{.buffer = -1}); }), HasSubstr("buffer is -1"));
  EXPECT_THAT(refusal([] { numbers().then(Take{-1}); }), HasSubstr("count is -1"));
  EXPECT_THAT(refusal([] { numbers().then(Repeat{-2}); }), HasSubstr("times is -2"));
  EXPECT_THAT(refusal([] { numbers().then(Prefetch{0}); }), HasSubstr("depth is 0"));
  EXPECT_THAT(refusal([] { numbers().fork(0); }), HasSubstr("branches is 0"));
  EXPECT_THAT(refusal([] { numbers().then(Map{}); }), HasSubstr("it has no function"));
  EXPECT_THAT(refusal([] { Graph::source(nullptr); }), HasSubstr("it has no item source"));
  EXPECT_EQ(refusal([] { numbers().then(Repeat{}).then(Take{0}); }), "nothing was refused");
}

TEST(Graph, FindsStagesByNameOrListsAllNames) {
  EXPECT_EQ(refusal([] { numbers().then(same()).find("mop"); }),
            "there is no stage \"mop\"; the stages are source, map");
}

TEST(Graph, ColocatesAStageWithOneThatItFeedsInAnyGraph) {
  const Graph colocated = numbers().then(same()).then(all()).colocate("source", "filter");
  EXPECT_THAT(colocated.stages()[0].colocated, ElementsAre(2));
  const Graph joined = Graph::join(Zip{}, {numbers(3, "other"), colocated});
  EXPECT_THAT(joined.stages()[0].colocated, IsEmpty());
  EXPECT_THAT(joined.stages()[1].colocated, ElementsAre(3));
  EXPECT_THAT(refusal([&] { colocated.colocate("filter", "source"); }), HasSubstr("its items do not reach \"source\""));
  EXPECT_THAT(refusal([&] { colocated.colocate("map", "map"); }), HasSubstr("do not reach"));
}

TEST(Graph, KnowsTheNameOfEveryOperation) {
  EXPECT_EQ(operation_name(Source{}), "source");
  EXPECT_EQ(operation_name(FlatMap{}), "flat_map");
  EXPECT_EQ(operation_name(Pack{}), "pack");
  EXPECT_EQ(operation_name(Shuffle{}), "shuffle");
  EXPECT_EQ(operation_name(Branch{}), "branch");
  EXPECT_EQ(operation_name(FullSync{}), "full_sync");
  EXPECT_EQ(operation_name(Transform{}), "transform");
}

}  // namespace
}  // namespace levada::pipeline
