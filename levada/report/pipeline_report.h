// The part of a report that describes a pipeline.
#pragma once

#include <string>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/stage_trace.h"

namespace levada::report {

/// One of a pipeline's processes.
struct ProcessReport {
  std::string name;                 ///< "worker 0 (process 4242)"
  std::vector<std::string> stages;  ///< stage names by number; empty for stages that run elsewhere
  StageTrace trace;
  bool operator==(const ProcessReport&) const = default;
};

struct PipelineReport {
  int rank = -1;                         ///< the feed's rank that read from it; -1 without a feed
  std::string json;                      ///< JSON that the page draws, as returned by show("json"); never parsed here
  std::string finding;                   ///< "parse is the bottleneck: ..."
  std::vector<ProcessReport> processes;  ///< the consumer first
  bool operator==(const PipelineReport&) const = default;
};

/// Encodes and decodes all members except the rank. decode_pipeline() accepts untrusted bytes and throws
/// CorruptMessage.
Bytes encode(const PipelineReport& pipeline);
PipelineReport decode_pipeline(ByteView bytes);

}  // namespace levada::report
