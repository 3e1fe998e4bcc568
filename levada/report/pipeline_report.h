// A pipeline as a report shows it: its stages, the processes that ran them, and what each did.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/stage_trace.h"

namespace levada::report {

enum class PipelineRole : std::uint8_t { dispatcher, worker, consumer };
/// "dispatcher", "worker", "consumer".
std::string_view describe(PipelineRole role);

/// What a stage did in a process.
struct StageCountsReport {
  std::int64_t items = 0, skipped = 0;
  double busy_seconds = 0;    ///< in its own work
  double waited_seconds = 0;  ///< for what is before it
};

struct StageReport {
  std::string name;
  std::string what;  ///< "batch size=8"
  PipelineRole role = PipelineRole::consumer;
  std::vector<std::size_t> inputs;  ///< smaller numbers than its own
};

struct PipelineProcessReport {
  std::string name;  ///< "worker 0 (process 4242)"
  PipelineRole role = PipelineRole::consumer;
  std::vector<StageCountsReport> stages;  ///< as many as the pipeline has; those that run elsewhere did nothing here
  StageTrace trace;
};

struct PipelineReport {
  int rank = -1;  ///< of the feed's ranks, the one that read from it; -1: no feed did
  int workers = 0;
  double seconds = 0;                   ///< that its epochs took
  std::optional<std::size_t> dealt;     ///< whose items go to the workers in turn
  std::optional<std::size_t> gathered;  ///< whose items come from the workers
  std::optional<std::size_t> holds_back;
  double load = 0;  ///< of each process that runs it, its part of the time; without it, how busy the busiest process is
  std::vector<StageReport> stages;               ///< inputs first
  std::vector<PipelineProcessReport> processes;  ///< the consumer first
};

/// Of what the pipeline's show("json") gives of one at work, and the traces of its processes in their order, encoded;
/// none where nothing was recorded. Throws InvalidArgument, and CorruptMessage.
PipelineReport pipeline_from_json(std::string_view text, ByteView traces);

/// "parse holds the rest back: it takes 97% of each worker's time. More workers would share that work." Or that none
/// does.
std::string find_bottleneck(const PipelineReport& pipeline);

}  // namespace levada::report
