// A pipeline as a report shows it.
#pragma once

#include <string>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/stage_trace.h"

namespace levada::report {

/// One of a pipeline's processes.
struct ProcessReport {
  std::string name;                 ///< "worker 0 (process 4242)"
  std::vector<std::string> stages;  ///< the names of its stages by their numbers; empty for those that run elsewhere
  StageTrace trace;
  bool operator==(const ProcessReport&) const = default;
};

struct PipelineReport {
  int rank = -1;                         ///< of the feed's ranks, the one that read from it; -1 without a feed
  std::string json;                      ///< what the page draws, as show("json") returns it; never parsed here
  std::string finding;                   ///< "parse is the bottleneck: ..."
  std::vector<ProcessReport> processes;  ///< the consumer first
  bool operator==(const PipelineReport&) const = default;
};

/// All but the rank, and back. decode_pipeline() reads untrusted bytes and throws CorruptMessage.
Bytes encode(const PipelineReport& pipeline);
PipelineReport decode_pipeline(ByteView bytes);

}  // namespace levada::report
