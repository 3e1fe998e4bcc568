// Random pipelines, for properties that hold for all of them.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "levada/pipeline/graph_testing.h"

namespace levada::pipeline::testing {

struct RandomGraphOptions {
  int joints = 3;          ///< limit on zips of two graphs
  int run = 3;             ///< limit on stages in a row
  int dispatch_tenth = 1;  ///< approximate number of dispatches in ten stages
  int shard_tenth = 1;
  bool full_sync = true;  ///< sometimes at the end of a branch, or of everything
};

/// Generates graphs that Graph accepts; not all of them can be placed.
class RandomGraph {
 public:
  explicit RandomGraph(std::uint64_t seed, RandomGraphOptions options = {}) : random_(seed), options_(options) {}

  Graph make() {
    Graph graph = make(draw(options_.joints + 1));
    if (options_.full_sync && draw(4) == 0) graph = graph.then(FullSync{});
    return graph;
  }

 private:
  int draw(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  Graph make(int joints) {
    if (joints == 0) return row(numbers(20, {}, draw(3) == 0));
    if (draw(2) == 0) {
      const int left = draw(joints);
      return row(Graph::join(Zip{}, {make(left), make(joints - 1 - left)}));
    }
    std::vector<Graph> branches = make(joints - 1).fork(2 + draw(2));
    for (Graph& branch : branches) branch = row(branch);
    return row(Graph::join(Zip{}, branches));
  }

  Graph row(Graph graph) {
    const int first = graph.end();
    for (int count = draw(options_.run + 1); count > 0; --count) graph = graph.then(operation());
    if (options_.full_sync && draw(12) == 0) graph = graph.then(FullSync{});
    if (graph.end() > first + 1 && draw(6) == 0) {
      const auto& stages = graph.stages();
      graph = graph.colocate(stages[static_cast<std::size_t>(first + 1)].name, stages.back().name);
    }
    return graph;
  }

  Operation operation() {
    const int tenth = draw(10);
    if (tenth < options_.dispatch_tenth) return Dispatch{};
    if (tenth < options_.dispatch_tenth + options_.shard_tenth) return Shard{};
    switch (draw(13)) {
      case 0: return all();
      case 1: return once();
      case 2: return Batch{1 + draw(3)};
      case 3: return Prefetch{2};
      case 4: return Repeat{2};
      case 5: return Take{15};
      case 6: return Skip{1};
      case 7: return Shuffle{.buffer = 4, .seed = 7};
      case 8: return Pack{.sequence = 8, .method = draw(2) == 0 ? Packing::cut : Packing::best_fit};
      default: return same();
    }
  }

  std::mt19937_64 random_;
  RandomGraphOptions options_;
};

}  // namespace levada::pipeline::testing
