#include "levada/pipeline/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/pipeline/graph_testing.h"
#include "levada/pipeline/random_graph_testing.h"

namespace levada::pipeline {
namespace {

using testing::all;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::numbers;
using testing::on_threads;
using testing::once;
using testing::same;
using ::testing::UnorderedElementsAre;

Graph zip(const std::vector<Graph>& inputs, std::string name = {}) {
  return Graph::join(Zip{}, inputs, std::move(name));
}

/// Returns "source dispatch | map | full_sync": the stages of the dispatching process, the workers and the consumer.
std::string split(const Graph& graph, const Placement& placement) {
  std::vector<std::string> of[3];
  for (std::size_t i = 0; i < graph.stages().size(); ++i) {
    of[static_cast<std::size_t>(placement.role_of[i])].push_back(graph.stages()[i].name);
  }
  return fmt::format("{} | {} | {}", fmt::join(of[0], " "), fmt::join(of[1], " "), fmt::join(of[2], " "));
}
std::string split(const Graph& graph, bool ordered = false) {
  return split(graph, place(graph, 2, ordered));
}

std::string refusal(const Graph& graph, bool ordered = false) {
  try {
    return "(placed) " + split(graph, ordered);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(Placement, WithoutWorkersTheConsumerRunsAllStages) {
  const Graph graph = numbers().then(Dispatch{}).then(same()).then(FullSync{});
  const Placement placement = place(graph, 0);
  EXPECT_EQ(split(graph, placement), " |  | source dispatch map full_sync");
  EXPECT_FALSE(placement.dispatch_boundary || placement.collect_boundary);
  EXPECT_TRUE(placement.one_to_one);
  EXPECT_THROW(place(graph, -1), InvalidArgument);
}

TEST(Placement, WithoutAMarkEachWorkerCopiesAllStages) {
  EXPECT_EQ(split(numbers().then(Shuffle{}).then(Shard{}).then(same())), " | source shuffle shard map | ");
  const Placement placement = place(numbers().then(same()), 3);
  EXPECT_FALSE(placement.dispatch_boundary.has_value());
  EXPECT_EQ(placement.collect_boundary, 1);
}

TEST(Placement, StagesBeforeAMarkRunInTheDispatchingProcess) {
  const Graph graph = numbers().then(Shuffle{}).then(Dispatch{}).then(same()).then(Batch{4});
  const Placement placement = place(graph, 2);
  EXPECT_EQ(split(graph, placement), "source shuffle dispatch | map batch | ");
  EXPECT_EQ(placement.dispatch_boundary, 2);
  EXPECT_EQ(placement.collect_boundary, 4);
}

TEST(Placement, ShardsMayPrecedeOrFollowAMark) {
  EXPECT_EQ(split(numbers().then(Shard{}).then(Dispatch{}).then(same())), "source shard dispatch | map | ");
  EXPECT_EQ(split(numbers().then(Dispatch{}).then(same()).then(Shard{})), "source dispatch | map shard | ");
}

TEST(Placement, TheLastOfSeveralMarksCuts) {
  EXPECT_EQ(split(numbers().then(Dispatch{}).then(same()).then(Dispatch{}).then(all())),
            "source dispatch map dispatch_2 | filter | ");
}

TEST(Placement, ARepeatRunsWithTheStagesThatItRepeats) {
  EXPECT_EQ(split(numbers().then(Dispatch{}).then(same()).then(Repeat{2}).then(all())),
            "source dispatch map repeat | filter | ");
  EXPECT_EQ(split(numbers().then(Shard{}).then(same()).then(Repeat{2}).then(all()), true),
            "source shard map repeat | filter | ");
  EXPECT_EQ(split(numbers().then(Shard{}).then(Repeat{2}).then(all())), " | source shard repeat filter | ");
  EXPECT_EQ(refusal(numbers().then(Shard{}).then(FullSync{}).then(Repeat{2})),
            "stage \"repeat\" cannot repeat stages that run in workers and on all ranks; put it before \"full_sync\"");
}

TEST(Placement, WorkersForwardItemsIfNoStageIsLeftForThem) {
  const Graph graph = numbers().then(Dispatch{});
  const Placement placement = place(graph, 2);
  EXPECT_EQ(split(graph, placement), "source dispatch |  | ");
  EXPECT_EQ(placement.collect_boundary, placement.dispatch_boundary);
  EXPECT_TRUE(placement.one_to_one);
}

// A graph of a single branch, a forked one and one with colocated stages in a circle, zipped:
//
//   single ------------------------------ zip
//   forked -> fork -> left, right -> pair --/
//   circle -> mapped (with circle) -------/
struct Marks {
  bool single = false, forked = false, left = false, circle = false, mapped = false;
};
Graph many(const Marks& marks, bool sharded = true) {
  const auto marked = [](const Graph& graph, bool mark, const char* name) {
    return mark ? graph.then(Dispatch{}, name) : graph;
  };
  const auto source = [&](const char* name) {
    const Graph graph = numbers(10, name);
    return sharded ? graph.then(Shard{}, std::string(name) + "_shard") : graph;
  };
  const Graph single = marked(source("single"), marks.single, "single_mark");
  auto branches = marked(source("forked"), marks.forked, "forked_mark").fork(2, 10, "fork");
  const Graph left = marked(branches[0], marks.left, "left_mark");
  const Graph pair = zip({left, branches[1]}, "pair");
  const Graph circle = marked(source("circle"), marks.circle, "circle_mark").then(same(), "mapped");
  const Graph colocated = marked(circle.colocate("circle", "mapped"), marks.mapped, "mapped_mark");
  return zip({single, pair, colocated}, "end");
}

std::string ancestor(const Graph& graph, const std::vector<std::string>& names) {
  std::vector<int> stages;
  for (const auto& name : names) stages.push_back(graph.find(name));
  return graph.stage(lowest_common_ancestor(graph, stages)).name;
}

TEST(LowestCommonAncestor, IsTheStageItselfOnASingleBranch) {
  EXPECT_EQ(ancestor(many({}), {"single"}), "single");
  EXPECT_EQ(ancestor(many({.single = true}), {"single_mark"}), "single_mark");
}

TEST(LowestCommonAncestor, IsTheMeetingPointOfTheBranchesAfterAFork) {
  EXPECT_EQ(ancestor(many({.forked = true}), {"forked_mark"}), "forked_mark");
  EXPECT_EQ(ancestor(many({.left = true}), {"left_mark"}), "pair");
  EXPECT_EQ(ancestor(many({}), {"branch"}), "pair");
  EXPECT_EQ(ancestor(many({}), {"fork"}), "pair");
}

TEST(LowestCommonAncestor, IsTheEndOfACircle) {
  EXPECT_EQ(ancestor(many({}), {"circle"}), "mapped");
  EXPECT_EQ(ancestor(many({.circle = true}), {"circle_mark"}), "mapped");
  EXPECT_EQ(ancestor(many({}), {"mapped"}), "mapped");
  EXPECT_EQ(ancestor(many({.mapped = true}), {"mapped_mark"}), "mapped_mark");
}

TEST(LowestCommonAncestor, IsNeverAForkEvenIfOnlyOneBranchIsUsed) {
  EXPECT_EQ(ancestor(numbers().fork()[1].then(same()), {"fork"}), "branch");
}

TEST(LowestCommonAncestor, IsTheMeetingPointOfSeveralStages) {
  EXPECT_EQ(ancestor(many({.single = true, .forked = true}), {"single_mark", "forked_mark"}), "end");
  EXPECT_EQ(ancestor(many({.single = true, .left = true}), {"single_mark", "left_mark"}), "end");
  EXPECT_EQ(ancestor(many({.forked = true, .left = true}), {"forked_mark", "left_mark"}), "pair");
  EXPECT_EQ(ancestor(many({.single = true, .circle = true}), {"single_mark", "circle_mark"}), "end");
  EXPECT_EQ(ancestor(many({.circle = true, .mapped = true}), {"circle_mark", "mapped_mark"}), "mapped_mark");
}

TEST(LowestCommonAncestor, IncludesTheForkOfAnUnmarkedBranch) {
  // left's fork feeds both sides of the stage at which the marks meet, so the marks do not suffice to find the cut.
  const auto branches = numbers().fork();
  const Graph meet = zip({numbers(10, "other").then(Dispatch{}, "mark"), branches[0]}, "meet");
  const Graph graph = zip({meet, branches[1].then(same())}, "end");
  EXPECT_EQ(ancestor(graph, {"mark", "meet"}), "end");
}

std::vector<std::string> beside(const Graph& graph, const std::string& stage) {
  std::vector<std::string> names;
  for (const int i : sibling_branches(graph, graph.find(stage))) {
    names.push_back(graph.stage(i).name);
  }
  return names;
}

TEST(SiblingBranches, AreTheOtherInputsOnThePathToTheEnd) {
  const Graph graph = many({}, false);
  EXPECT_THAT(beside(graph, "single"), UnorderedElementsAre("pair", "mapped"));
  EXPECT_THAT(beside(graph, "forked"), UnorderedElementsAre("single", "mapped"));
  EXPECT_THAT(beside(graph, "pair"), UnorderedElementsAre("single", "mapped"));
  EXPECT_THAT(beside(graph, "mapped"), UnorderedElementsAre("single", "pair"));
  EXPECT_THAT(beside(graph, "branch"), UnorderedElementsAre("single", "branch_2", "mapped"));
  EXPECT_THAT(beside(graph, "end"), IsEmpty());
}

TEST(Placement, DispatchesTheMarkedBranchAndDividesTheOthers) {
  EXPECT_EQ(
      split(many({.single = true})),
      "single single_shard single_mark | forked forked_shard fork branch branch_2 pair circle circle_shard mapped "
      "end | ");
  EXPECT_EQ(
      split(many({.forked = true})),
      "forked forked_shard forked_mark | single single_shard fork branch branch_2 pair circle circle_shard mapped "
      "end | ");
}

TEST(Placement, SiblingsOfAForkedStageMoveWithIt) {
  EXPECT_EQ(split(many({.left = true})),
            "forked forked_shard fork branch left_mark branch_2 pair | single single_shard circle circle_shard mapped "
            "end | ");
}

TEST(Placement, ACircleStaysInOneProcess) {
  const std::string whole =
      "circle circle_shard circle_mark mapped | single single_shard forked forked_shard fork branch branch_2 pair end "
      "| ";
  EXPECT_EQ(split(many({.circle = true})), whole);
}

TEST(Placement, MarksOnSeveralBranchesMeetInTheDispatchingProcess) {
  const Graph graph = many({.single = true, .circle = true}).then(same(), "last");
  const Placement placement = place(graph, 2);
  EXPECT_EQ(graph.stage(*placement.dispatch_boundary).name, "end");
  EXPECT_EQ(std::ranges::count(placement.role_of, Role::worker), 1);
}

TEST(Placement, RejectsAnUndividedBranchNextToAMark) {
  EXPECT_EQ(refusal(zip({numbers(9, "a").then(Dispatch{}), numbers(9, "b").then(same())})),
            "stage \"map\" is on a branch next to dispatch \"dispatch\", and no shard divides the items of \"b\": each "
            "worker would yield all of them; put a shard or a dispatch after \"b\"");
  EXPECT_THAT(refusal(many({.single = true}, false)), HasSubstr("no shard divides the items of \"forked\""));
  const Graph half = zip({numbers(9, "divided").then(Shard{}), numbers(9, "whole")}, "half");
  EXPECT_THAT(refusal(zip({numbers(9, "a").then(Dispatch{}), half})), HasSubstr("\"half\" is on a branch next to"));
}

TEST(Placement, AcceptsAnUndividedBranchIfNothingOrEverythingIsDispatched) {
  EXPECT_EQ(split(zip({numbers(), numbers()})), " | source source_2 zip | ");
  EXPECT_EQ(split(zip({numbers().then(Dispatch{}), numbers().then(Dispatch{})}).then(same())),
            "source dispatch source_2 dispatch_2 zip | map | ");
}

TEST(Placement, FullSyncAndLaterStagesRunInTheConsumer) {
  EXPECT_EQ(split(numbers().then(Dispatch{}).then(same()).then(FullSync{}).then(Batch{2})),
            "source dispatch | map | full_sync batch");
  EXPECT_EQ(split(numbers().then(Shard{}).then(same()).then(FullSync{})), " | source shard map | full_sync");
  EXPECT_EQ(split(numbers().then(Dispatch{}).then(FullSync{})), "source dispatch |  | full_sync");
}

TEST(Placement, BranchesThatFeedOnlyTheConsumerRunThere) {
  const Graph synced = numbers(9, "a").then(Dispatch{}).then(same()).then(FullSync{});
  EXPECT_EQ(split(zip({synced, numbers(9, "b").then(all())})), "a dispatch | map | full_sync b filter zip");
  const auto branches = numbers().then(Shard{}).then(same()).fork();
  EXPECT_EQ(split(zip({branches[0].then(FullSync{}), branches[1]})),
            " | source shard map | fork branch full_sync branch_2 zip");
}

TEST(Placement, RejectsDispatchingAStageThatNeedsAllRanks) {
  EXPECT_EQ(
      refusal(numbers().then(FullSync{}).then(Dispatch{})),
      "stage \"full_sync\" needs all ranks and so runs in the consumer, but feeds \"dispatch\", which the dispatching "
      "process runs; put it after the last dispatch");
  EXPECT_THAT(refusal(numbers().then(same()).then(FullSync{}).colocate("source", "full_sync")),
              HasSubstr("no stage can run in a worker: all must run in one process with \"full_sync\""));
  EXPECT_THAT(refusal(numbers().then(Repeat{2}).then(FullSync{}).colocate("repeat", "full_sync")),
              HasSubstr("no stage can run in a worker"))
      << "the source could, but not the repeat that restarts it";
}

TEST(PlacementOrdered, WorkersRunItemByItemStages) {
  const Graph graph = numbers().then(Dispatch{}).then(same()).then(all()).then(once()).then(Unbatch{}).then(same());
  EXPECT_EQ(split(graph, true), "source dispatch | map filter flat_map unbatch map_2 | ");
  EXPECT_EQ(split(graph.then(Batch{4}).then(same()), true),
            "source dispatch | map filter flat_map unbatch map_2 | batch map_3");
}

TEST(PlacementOrdered, WorkersRunAnyOneToOneStages) {
  const auto branches = numbers().then(Dispatch{}).then(Prefetch{2}).fork();
  const Graph graph = zip({branches[0].then(same()), branches[1]});
  EXPECT_EQ(split(graph, true), "source dispatch | prefetch fork branch map branch_2 zip | ");
  EXPECT_EQ(split(graph.then(all()), true), "source dispatch | prefetch fork branch map branch_2 zip | filter");
}

TEST(PlacementOrdered, WorkersRunNoShards) {
  EXPECT_EQ(split(zip({numbers(9, "a").then(Dispatch{}).then(same()), numbers(9, "b").then(Shard{})}), true),
            "a dispatch | map | b shard zip");
  EXPECT_EQ(split(numbers().then(Shard{}).then(same()).then(Batch{2}), true), "source shard | map | batch");
  EXPECT_EQ(split(numbers().then(Dispatch{}).then(same()).then(Pack{}), true), "source dispatch | map | pack");
  EXPECT_EQ(split(numbers().then(same()), true), "source map |  | ");
  EXPECT_EQ(split(numbers().then(same()).then(FullSync{}).then(Shard{}), true), "source map |  | full_sync shard");
}

TEST(PlacementOrdered, WorkersRunThreadedMapsIfAllStagesAreOneToOne) {
  const Graph graph = numbers().then(Dispatch{}).then(same()).then(on_threads());
  EXPECT_EQ(split(graph, true), "source dispatch | map map_2 | ");
  EXPECT_EQ(split(graph.then(all()), true), "source dispatch | map map_2 | filter");
  EXPECT_EQ(split(numbers().then(Dispatch{}).then(all()).then(on_threads()), true), "source dispatch | filter | map");
  EXPECT_EQ(split(numbers().then(Dispatch{}).then(on_threads(OnError::skip)), true), "source dispatch |  | map");
}

bool one_to_one(const Graph& graph, bool ordered = false) {
  return place(graph, 2, ordered).one_to_one;
}

TEST(OneToOne, MeansThatEachDispatchedItemBecomesOneItem) {
  const Graph dealt = numbers().then(Shuffle{}).then(Dispatch{});
  EXPECT_TRUE(one_to_one(dealt.then(same()).then(Prefetch{3}).then(same())));
  const auto branches = dealt.fork();
  EXPECT_TRUE(one_to_one(zip({branches[0].then(same()), branches[1]})));
  for (const Operation& operation : std::initializer_list<Operation>{all(), once(), Batch{1}, Unbatch{}, Pack{},
                                                                     Shuffle{}, Shard{}, Take{3}, Skip{1}}) {
    EXPECT_FALSE(one_to_one(dealt.then(same()).then(operation))) << operation_name(operation);
  }
  Map skipping = same();
  skipping.on_error = OnError::skip;
  EXPECT_FALSE(one_to_one(dealt.then(skipping)));
  EXPECT_TRUE(one_to_one(dealt.then(on_threads()).then(same()).then(on_threads())));
  EXPECT_TRUE(one_to_one(zip({branches[0].then(on_threads()), branches[1]})));
  EXPECT_FALSE(one_to_one(dealt.then(on_threads(OnError::skip))));
  EXPECT_FALSE(one_to_one(zip({dealt, numbers().then(Shard{})})));
}

TEST(OneToOne, ConsidersOnlyTheStagesOfWorkers) {
  EXPECT_TRUE(one_to_one(numbers().then(Dispatch{}).then(same()).then(FullSync{}).then(Batch{2})));
  const Graph graph = numbers().then(Dispatch{}).then(same()).then(Batch{2});
  EXPECT_FALSE(one_to_one(graph));
  EXPECT_TRUE(one_to_one(graph, true));
}

TEST(OneToOne, AlsoAppliesToTheItemsOfASingleShard) {
  EXPECT_TRUE(one_to_one(numbers().then(Shuffle{}).then(Shard{}).then(same())));
  EXPECT_TRUE(one_to_one(numbers().then(Shard{}).then(on_threads())));
  EXPECT_FALSE(one_to_one(numbers().then(Shard{}).then(all())));
  EXPECT_FALSE(one_to_one(numbers().then(same())));
  EXPECT_FALSE(one_to_one(numbers(10, {}, true).then(Shard{}).then(same())))
      << "parts of files do not yield items in turn";
  EXPECT_FALSE(one_to_one(zip({numbers().then(Shard{}), numbers().then(Shard{})})));
}

/// Returns the first general property that the placement of `graph` violates; empty: none.
std::string broken(const Graph& graph, const Placement& placement) {
  const auto role = [&](int stage) { return placement.role_of[static_cast<std::size_t>(stage)]; };
  const auto& stages = graph.stages();
  if (placement.role_of.size() != stages.size()) return "a stage has no process";
  for (int stage = 0; stage <= graph.end(); ++stage) {
    const auto& inputs = stages[static_cast<std::size_t>(stage)].inputs;
    for (const int input : inputs) {
      if (role(input) == role(stage)) continue;
      if (role(input) == Role::dispatcher && input != placement.dispatch_boundary)
        return "an edge leaves the dispatching process";
      if (role(input) == Role::worker && input != placement.collect_boundary) return "an edge leaves the workers";
      if (role(input) == Role::consumer) return "an edge leads back from the consumer";
      if (role(stage) == Role::dispatcher) return "the dispatching process is fed by another";
      if (role(input) == Role::dispatcher && role(stage) == Role::consumer &&
          placement.collect_boundary != placement.dispatch_boundary) {
        return "an edge bypasses the workers";
      }
    }
    for (const int colocated : stages[static_cast<std::size_t>(stage)].colocated) {
      if (role(colocated) != role(stage)) return "colocated stages are in different processes";
    }
    const auto& operation = stages[static_cast<std::size_t>(stage)].operation;
    if (std::holds_alternative<Repeat>(operation)) {
      const auto apart = [&](int input) { return role(input) != role(stage); };
      if (std::ranges::any_of(inputs, apart)) return "a repeat and its input are in different processes";
    }
    if (std::holds_alternative<Dispatch>(operation) && role(stage) != Role::dispatcher)
      return "a dispatch runs in a worker";
    if (std::holds_alternative<FullSync>(operation) && role(stage) != Role::consumer)
      return "a full_sync runs outside the consumer";
  }
  if (!placement.collect_boundary) return "the workers yield nothing";
  if (role(*placement.collect_boundary) == Role::consumer) return "the consumer collects from itself";
  if (placement.dispatch_boundary && role(*placement.dispatch_boundary) != Role::dispatcher)
    return "a worker dispatches";
  return {};
}

TEST(Placement, CutsRandomGraphsAtTwoEdgesOrRejectsThem) {
  int placed = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const Graph graph = testing::RandomGraph(seed).make();
    for (const bool ordered : {false, true}) {
      try {
        const Placement placement = place(graph, 3, ordered);
        ASSERT_EQ(broken(graph, placement), "") << "seed " << seed << ": " << split(graph, placement);
        ++placed;
      } catch (const InvalidArgument& error) {
        EXPECT_THAT(error.what(), HasSubstr("stage"));
        ++refused;
      }
    }
  }
  EXPECT_GT(placed, 1000);
  EXPECT_GT(refused, 100);
}

TEST(LowestCommonAncestor, IsTheLowestStageAfterWhichTheGraphCanBeCut) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Graph graph = testing::RandomGraph(seed).make();
    const auto& stages = graph.stages();
    const auto reach = [&](int end) {
      std::vector<bool> found(stages.size(), false);
      found[static_cast<std::size_t>(end)] = true;
      for (int i = end; i >= 0; --i) {
        if (!found[static_cast<std::size_t>(i)]) continue;
        for (const int input : stages[static_cast<std::size_t>(i)].inputs)
          found[static_cast<std::size_t>(input)] = true;
      }
      return found;
    };
    const auto edges_out = [&](int end) {
      const auto inside = reach(end);
      int edges = 0;
      for (std::size_t i = 0; i < stages.size(); ++i) {
        for (const int input : stages[i].inputs) edges += inside[static_cast<std::size_t>(input)] && !inside[i];
        for (const int colocated : stages[i].colocated)
          edges += inside[i] && !inside[static_cast<std::size_t>(colocated)];
      }
      return edges;
    };
    for (int stage = 0; stage <= graph.end(); ++stage) {
      const int lowest = lowest_common_ancestor(graph, {stage});
      EXPECT_TRUE(reach(lowest)[static_cast<std::size_t>(stage)]) << seed;
      EXPECT_LE(edges_out(lowest), 1) << seed;
      for (int lower = stage; lower < lowest; ++lower) {
        const bool fits = reach(lower)[static_cast<std::size_t>(stage)] && edges_out(lower) <= 1;
        const bool is_fork = std::holds_alternative<Fork>(stages[static_cast<std::size_t>(lower)].operation);
        EXPECT_FALSE(fits && !is_fork) << "seed " << seed << ", stage " << stage << ", " << lower;
      }
    }
  }
}

}  // namespace
}  // namespace levada::pipeline
