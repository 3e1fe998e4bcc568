// A pipeline to look at: its stages, their processes and, of one at work, which stage is the bottleneck.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/metric.h"
#include "levada/pipeline/placement.h"

namespace levada::pipeline {

/// Of all processes of a pipeline; a moment old.
struct Stats {
  struct OfStage {
    std::int64_t items = 0, skipped = 0;
    double busy_seconds = 0, waited_seconds = 0;
  };
  struct OfProcess {
    std::string name;  ///< "worker 0 (process 4242)"
    Role role = Role::consumer;
    std::vector<OfStage> stages;  ///< those of other processes have done nothing here
  };
  std::vector<OfStage> stages;       ///< of all processes, added up
  std::vector<OfProcess> processes;  ///< by rank: the consumer, the dispatching process if there is one, the workers
  double seconds = 0;                ///< that its epochs have taken
  std::int64_t messages = 0;         ///< with items, to and from the workers
  std::int64_t wakeups = 0;          ///< of a process that waited for one
  std::uint64_t bytes = 0;           ///< of items, to and from the workers
  std::uint64_t copied = 0;          ///< of those, how many were copied
};

/// Returns metrics for each stage of `graph` and for the messages, each with `labels`.
std::vector<Metric> metrics(const Graph& graph, const Stats& stats, const MetricLabels& labels);

/// What is shown. Borrows all of it.
struct GraphView {
  const Graph& graph;
  const Placement& placement;  ///< of `graph`
  int workers = 0;
  const Stats* stats = nullptr;  ///< of `graph`; null where it is not at work
};

/// "shuffle buffer=1000 seed=7"
std::string describe(const Operation& operation);

/// A table, a line a stage; with stats a last line that names the bottleneck.
std::string to_text(const GraphView& view);
/// One JSON object.
std::string to_json(const GraphView& view);
/// A Mermaid flowchart, with a box a process.
std::string to_mermaid(const GraphView& view);

struct Bottleneck {
  int stage = 0;
  double load = 0;  ///< of each process that runs it, the part of its time that this stage takes
};
/// Of the process that is busiest, the stage that takes most of its time; empty where no process is busy for half of
/// it, so that it is the caller that all wait for.
std::optional<Bottleneck> bottleneck(const GraphView& view);
/// "parse is the bottleneck: it takes 97% of each worker's time. ..." and what may help; or that there is none. Needs
/// stats.
std::string describe_bottleneck(const GraphView& view);

}  // namespace levada::pipeline
