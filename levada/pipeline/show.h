// Shows a pipeline: its stages, their processes and, if it runs, which stage is the bottleneck.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/metric.h"
#include "levada/pipeline/placement.h"
#include "levada/pipeline/protocol.h"

namespace levada::pipeline {

/// The counts of all processes of a pipeline, a moment ago.
struct Stats {
  struct OfProcess {
    std::string name;  ///< "worker 0 (process 4242)"
    Role role = Role::consumer;
    std::vector<protocol::StageTotals> stages;  ///< 0 for stages of other processes
  };
  std::vector<protocol::StageTotals> stages;  ///< of all processes, added up
  std::vector<OfProcess> processes;  ///< by rank: the consumer, the dispatching process if there is one, the workers
  double seconds = 0;                ///< of its epochs so far
  std::int64_t messages = 0;         ///< with items, to and from the workers
  std::int64_t wakeups = 0;          ///< of processes that waited for a message
  std::uint64_t bytes = 0;           ///< of items, to and from the workers
  std::uint64_t copied = 0;          ///< of these, bytes that were copied
};

/// Returns metrics for each stage of `graph` and for the messages, each with `labels`.
std::vector<Metric> metrics(const Graph& graph, const Stats& stats, const MetricLabels& labels);

/// What is shown. Borrows all its members.
struct GraphView {
  const Graph& graph;
  const Placement& placement;  ///< of `graph`
  int workers = 0;
  const Stats* stats = nullptr;  ///< of `graph`; null if it does not run
};

/// "shuffle buffer=1000 seed=7"
std::string describe(const Operation& operation);

/// Returns a table with a line for each stage; with stats, a last line names the bottleneck.
std::string to_text(const GraphView& view);
/// Returns one JSON object.
std::string to_json(const GraphView& view);
/// Returns a Mermaid flowchart, with a box for each process.
std::string to_mermaid(const GraphView& view);

struct Bottleneck {
  int stage = 0;
  double load = 0;  ///< the part of the time of each process that runs it which this stage takes
};
/// Returns the stage that takes the most time of the busiest process; empty if no process is busy for half of the time,
/// so that all wait for the caller.
std::optional<Bottleneck> bottleneck(const GraphView& view);
/// Returns "parse is the bottleneck: it takes 97% of each worker's time. ..." and what may help; or that there is none.
/// Needs stats.
std::string describe_bottleneck(const GraphView& view);

}  // namespace levada::pipeline
