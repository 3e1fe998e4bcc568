// Which process runs which stage: a function of the graph alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "levada/pipeline/graph.h"

namespace levada::pipeline {

/// Processes of a pipeline on one rank. The consumer is the caller's own.
enum class Role : std::uint8_t { dispatcher, worker, consumer };

/// With workers, stages run in up to three places, cut at two edges: items of stage `dealt` go from the dispatching
/// process to the workers in turn, those of stage `gathered` from the workers to the consumer. Without workers the
/// consumer runs all.
struct Placement {
  std::vector<Role> role_of;    ///< by stage
  std::optional<int> dealt;     ///< the last stage in the dispatching process; none: there is no such process
  std::optional<int> gathered;  ///< the last stage in the workers; none: there are no workers
  bool one_to_one = true;       ///< every item dealt gives one item gathered, so that order is that of one process
};

/// The lowest common ancestor of all dispatch marks, with all that feeds it and the siblings of a forked stage, is the
/// dispatching process's; what comes after it, and branches that it does not feed, are copied into each worker. With
/// `ordered`, and for stages that need all ranks, what is not done item by item runs in the consumer. Throws
/// InvalidArgument, naming the stages: a branch beside a mark that no shard divides.
Placement place(const Graph& graph, int workers, bool ordered = false);

/// The lowest stage that all of `stages` feed or are; a branch counts as its fork.
int lowest_common_ancestor(const Graph& graph, const std::vector<int>& stages);
/// The lowest stages of branches that `stage` neither feeds nor is fed by.
std::vector<int> branches_beside(const Graph& graph, int stage);

}  // namespace levada::pipeline
