// What the ranks did, for Perfetto and other viewers of the Chrome trace event format.
#pragma once

#include <string>
#include <vector>

#include "levada/base/trace.h"
#include "levada/report/feed_report.h"
#include "levada/report/pipeline_report.h"

namespace levada::report {

/// One JSON object in the Chrome trace event format: a process a rank, with threads "step" and "reader" and a counter
/// of memory in use; an arrow from where a reader made a step's messages to each rank's own step. `traces` are those
/// that explain_waits() gave, by rank; ranks without one are left out. Each process of a pipeline has a process too,
/// with a track of what it waits for, one for each of its stages, and a counter of items a second.
std::string trace_json(const FeedReport& report, const std::vector<Trace>& traces,
                       const std::vector<PipelineReport>& pipelines = {});

}  // namespace levada::report
