#include "levada/pipeline/show.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "levada/pipeline/graph_testing.h"

namespace levada::pipeline {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::numbers;
using testing::same;

constexpr std::int64_t s = 1'000'000'000;  ///< a second, in nanoseconds

Graph example() {
  return numbers()
      .then(Shuffle{.buffer = 100, .seed = 7})
      .then(Dispatch{})
      .then(same(), "tokenize")
      .then(Batch{8, true});
}

TEST(Show, PrintsATableOfStagesAndTheirProcesses) {
  const Graph graph = example();
  const Placement placement = place(graph, 2);
  EXPECT_EQ(to_text({.graph = graph, .placement = placement, .workers = 2}),
            "stage     operation                  process     after\n"
            "---------------------------------------------------------\n"
            "source    source numbers             dispatcher\n"
            "shuffle   shuffle buffer=100 seed=7  dispatcher  source\n"
            "dispatch  dispatch                   dispatcher  shuffle\n"
            "tokenize  map                        worker x2   dispatch\n"
            "batch     batch size=8 drop_last     worker x2   tokenize\n"
            "\n"
            "2 workers, to which items of dispatch are dealt in turn\n");
}

TEST(Show, DescribesHowDocumentsArePacked) {
  const Graph graph =
      numbers().then(Pack{.sequence = 8}).then(Pack{.sequence = 4, .method = Packing::best_fit, .buffer = 9});
  const auto text = to_text({.graph = graph, .placement = place(graph, 0)});
  EXPECT_THAT(text, HasSubstr("pack method=cut sequence=8 "));
  EXPECT_THAT(text, HasSubstr("pack method=best-fit sequence=4 buffer=9"));
  EXPECT_EQ(describe(Pack{.sequence = 8,
                          .method = Packing::best_fit,
                          .buffer = 9,
                          .pad_to = 4,
                          .partial = PartialRow::drop,
                          .too_long = LongDocument::error,
                          .max_documents = 3,
                          .tokens = "ids",
                          .ids = dtypes::int32}),
            "pack method=best-fit sequence=8 buffer=9 pad_to=4 partial=drop too_long=error max_documents=3 tokens=ids "
            "dtype=int32");
}

TEST(Show, StatesTheOrderAndTheLackOfWorkers) {
  const Graph graph = numbers().then(Dispatch{}).then(same());
  EXPECT_THAT(to_text({.graph = graph, .placement = place(graph, 1), .workers = 1}),
              EndsWith("1 worker, to which items of dispatch are dealt in turn; one-to-one: the order is that of one "
                       "process\n"));
  EXPECT_THAT(to_text({.graph = graph, .placement = place(graph, 0)}), EndsWith("no workers: the consumer runs all\n"));
}

TEST(Show, NamesTheBottleneck) {
  const Graph graph = example();
  const Placement placement = place(graph, 2);
  Stats stats{
      .stages = {{1000, 0, s / 2, 0}, {1000, 0, s / 4, s / 2}, {1000}, {990, 10, 18 * s, s}, {123, 0, s, 19 * s}},
      .seconds = 10};
  const GraphView view{.graph = graph, .placement = placement, .workers = 2, .stats = &stats};
  const std::string text = to_text(view);
  EXPECT_THAT(text,
              HasSubstr("tokenize  map                        worker x2   dispatch    990     99.0       10  90 %"));
  EXPECT_THAT(text, HasSubstr(" 1000      100        0   5 %     0 %\n"));
  EXPECT_THAT(text,
              EndsWith("\ntokenize is the bottleneck: it takes 90% of each worker's time. Make it faster, or let more "
                       "workers share it.\n"));
  EXPECT_EQ(bottleneck(view)->stage, 3);
  stats.stages[0].busy_ns = s * 99 / 10;
  EXPECT_THAT(to_text(view), HasSubstr("\nsource is the bottleneck: it takes 99% of the dispatcher's time. One process "
                                       "runs it. If the items of the source are numbered, replace dispatch()"));
  stats.seconds = 100;
  EXPECT_THAT(to_text(view),
              HasSubstr("\nNo stage is the bottleneck: the busiest process works 10% of the time, so the loop"));
}

TEST(Show, PrintsOneJsonObject) {
  const Graph graph = Graph::join(Zip{}, {numbers(3, "a \"b\" \xff").then(Dispatch{}), numbers(3).then(Shard{})});
  Stats stats{.stages = std::vector<protocol::StageTotals>(graph.stages().size(), {4, 1, 2 * s, 3 * s}), .seconds = 2};
  const auto json = nlohmann::json::parse(to_json({graph, place(graph, 2), 2, &stats}));
  EXPECT_EQ(json["workers"], 2);
  EXPECT_EQ(json["dispatch_boundary"], "dispatch");
  EXPECT_EQ(json["collect_boundary"], "zip");
  EXPECT_EQ(json["one_to_one"], false);
  EXPECT_EQ(json["stages"][0]["process"], "dispatcher");
  EXPECT_EQ(json["stages"][0]["parameters"]["source"], "numbers");
  EXPECT_EQ(json["stages"][4]["inputs"], nlohmann::json({"dispatch", "shard"}));
  EXPECT_EQ(json["stages"][4]["items_per_s"], 2.0);
  EXPECT_EQ(json["bottleneck"], "a \"b\" \uFFFD") << "invalid UTF-8 does not break it";
  EXPECT_THAT(json["finding"].get<std::string>(), HasSubstr("\uFFFD is the bottleneck"));
}

TEST(Show, PrintsAMermaidChartWithABoxPerProcess) {
  const Graph graph = numbers(3, "a \"b\"").then(Dispatch{}).then(same()).then(FullSync{}, "sync");
  EXPECT_EQ(to_mermaid({.graph = graph, .placement = place(graph, 3), .workers = 3}),
            "flowchart LR\n"
            "  subgraph dispatcher[\"dispatcher\"]\n"
            "    s0[\"a #34;b#34;<br/>source numbers\"]\n"
            "    s1[\"dispatch\"]\n"
            "  end\n"
            "  subgraph worker[\"3 workers\"]\n"
            "    s2[\"map\"]\n"
            "  end\n"
            "  subgraph consumer[\"consumer\"]\n"
            "    s3[\"sync<br/>full_sync\"]\n"
            "  end\n"
            "  caller((\"caller\"))\n"
            "  s0 --> s1\n"
            "  s1 == in turn ==> s2\n"
            "  s2 ==> s3\n"
            "  s3 --> caller\n");
}

TEST(Show, ShowsWorkersThatOnlyForwardItems) {
  const Graph graph = numbers().then(Dispatch{});
  EXPECT_THAT(to_mermaid({.graph = graph, .placement = place(graph, 2), .workers = 2}),
              EndsWith("  s0 --> s1\n  s1 == in turn ==> pass\n  pass ==> caller\n"));
}

TEST(Show, ShowsTheParametersOfEveryOperation) {
  const auto branches = numbers().then(Repeat{3}).then(Take{5}).then(Skip{1}).then(Prefetch{2}).fork(2, 9);
  Map lenient = same();
  lenient.on_error = OnError::skip;
  const Graph graph = Graph::join(
      Zip{}, {branches[0].then(lenient),
              branches[1].then(Transform{"another's \"pipe\"", [](auto, auto&) { return IteratorPtr(); }})});
  const std::string text = to_text({.graph = graph, .placement = place(graph, 0)});
  for (const char* part :
       {"repeat times=3 ", "take count=5 ", "skip count=1 ", "prefetch depth=2 ", "fork branches=2 buffer=9 ",
        "branch index=1 ", "map on_error=skip ", "transform another's \"pipe\" ", "zip ", "map, transform\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

}  // namespace
}  // namespace levada::pipeline
