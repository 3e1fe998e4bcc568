// Displays a pipeline: its stages, their processes and, while it runs, the bottleneck.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/metric.h"
#include "levada/pipeline/placement.h"
#include "levada/pipeline/protocol.h"

namespace levada::pipeline {

/// A recent snapshot of the counters of all processes of a pipeline.
struct Stats {
  struct OfProcess {
    std::string name;  ///< "worker 0 (process 4242)"
    Role role = Role::consumer;
    std::vector<protocol::StageTotals> stages;  ///< zero for stages of other processes
  };
  std::vector<protocol::StageTotals> stages;  ///< sums over all processes
  std::vector<OfProcess> processes;  ///< by rank: the consumer, the dispatching process if there is one, the workers
  double seconds = 0;                ///< duration of its epochs so far
  std::int64_t messages = 0;         ///< item messages to and from the workers
  std::int64_t wakeups = 0;          ///< wakeups of processes that waited for a message
  std::uint64_t bytes = 0;           ///< item bytes to and from the workers
  std::uint64_t copied = 0;          ///< the part of `bytes` that was copied
};

/// Returns metrics for each stage of `graph` and for the messages, each with `labels`.
std::vector<Metric> metrics(const Graph& graph, const Stats& stats, const MetricLabels& labels);

/// The pipeline to display. Borrows all its members.
struct GraphView {
  const Graph& graph;
  const Placement& placement;  ///< the placement of `graph`
  int workers = 0;
  const Stats* stats = nullptr;  ///< its counters; null if it does not run
};

/// Returns "shuffle buffer=1000 seed=7".
std::string describe(const Operation& operation);

/// Returns a table with a line per stage; with stats, the last line names the bottleneck.
std::string to_text(const GraphView& view);
/// Returns one JSON object.
std::string to_json(const GraphView& view);
/// Returns a Mermaid flowchart with a box per process.
std::string to_mermaid(const GraphView& view);

struct Bottleneck {
  int stage = 0;
  double load = 0;  ///< fraction of its processes' time that the stage takes
};
/// Returns the stage that takes the most time of the busiest process; nothing if no process is busy for half of the
/// time, because all processes then wait for the caller.
std::optional<Bottleneck> bottleneck(const GraphView& view);
/// Returns "parse is the bottleneck: it takes 97% of each worker's time. ..." and a remedy, or that there is none.
/// Requires stats.
std::string describe_bottleneck(const GraphView& view);

}  // namespace levada::pipeline
