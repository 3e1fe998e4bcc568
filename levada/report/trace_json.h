// The ranks' traces for Perfetto and other viewers of the Chrome trace event format.
#pragma once

#include <string>
#include <vector>

#include "levada/base/trace.h"
#include "levada/report/feed_report.h"
#include "levada/report/pipeline_report.h"

namespace levada::report {

/// Returns one JSON object in the Chrome trace event format. Each rank is a process with threads "step" and "reader"
/// and a counter of memory in use; an arrow leads from the time when a reader made a step's messages to each rank's own
/// step. `traces` are the result of explain_waits(), by rank; ranks without one are left out. Each process of a
/// pipeline is also a process, with a track of its waits, a track for each of its stages, and a counter of items per
/// second.
std::string trace_json(const FeedReport& report, const std::vector<Trace>& traces,
                       const std::vector<PipelineReport>& pipelines = {});

}  // namespace levada::report
