// A pipeline to look at: its stages, their processes and, of one at work, which stage is the bottleneck.
#pragma once

#include <optional>
#include <string>

#include "levada/pipeline/placement.h"
#include "levada/pipeline/stats.h"

namespace levada::pipeline {

/// What is shown. Borrows all of it.
struct Picture {
  const Graph& graph;
  const Placement& placement;  ///< of `graph`
  int workers = 0;
  const Stats* stats = nullptr;  ///< of `graph`; null where it is not at work
};

/// A table, a line a stage; with stats a last line that names the bottleneck.
std::string to_text(const Picture& picture);
/// One JSON object.
std::string to_json(const Picture& picture);
/// A Mermaid flowchart, with a box a process.
std::string to_mermaid(const Picture& picture);

struct Bottleneck {
  int stage = 0;
  double load = 0;  ///< of each process that runs it, the part of its time that this stage takes
};
/// Of the process that is busiest, the stage that takes most of its time; empty where no process is busy for half of
/// it, so that it is the caller that all wait for.
std::optional<Bottleneck> bottleneck(const Picture& picture);
/// "parse is the bottleneck: it takes 97% of each worker's time. ..." and what may help; or that there is none. Needs
/// stats.
std::string describe_bottleneck(const Picture& picture);

}  // namespace levada::pipeline
