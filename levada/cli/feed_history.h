// The history of a feed for `--report` and `--trace`: gathers it from the ranks and writes it to files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/trace.h"
#include "levada/cli/command.h"
#include "levada/engine/engine.h"
#include "levada/report/page.h"

namespace levada::cli {

struct HistoryFiles {
  std::string report;  ///< a page; empty: none
  std::string trace;   ///< for Perfetto; empty: none
  bool tell = true;    ///< whether to print their paths on standard error

  bool wanted() const { return !report.empty() || !trace.empty(); }
};

/// Returns the requested files, each with the option that names it.
std::vector<OutputFile> outputs_of(const HistoryFiles& files);

/// Returns a log that is bounded, so that rank 0 can hold the logs of all ranks.
TraceLog make_trace_log(int ranks);

/// Returns nanoseconds on this process's steady clock.
using ReadClock = std::function<std::int64_t()>;
inline std::int64_t read_clock() {
  return trace_time(Clock::now());
}

/// Returns on rank 0, for each rank, the offset that converts a time of its clock to rank 0's clock: 0 for ranks on
/// rank 0's host and for hosts whose ranks have all left. Returns an empty vector on other ranks. Collective.
std::vector<std::int64_t> clock_shifts(Engine& engine, Deadline deadline, const std::function<void()>* poll = nullptr,
                                       const ReadClock& now = read_clock);

/// A message from a rank to rank 0.
struct RankMessage {
  Bytes bytes;                      ///< empty if the rank has left
  std::int64_t clock_shift_ns = 0;  ///< offset to add to its times, which are on that rank's clock
};

/// Returns all ranks' bytes, by rank, on rank 0; an empty vector on other ranks. Collective. The bytes may be large.
std::vector<RankMessage> gather(Engine& engine, ByteView mine, Deadline deadline,
                                const std::function<void()>* poll = nullptr);

/// Returns all ranks' traces, by rank and on rank 0's clock, on rank 0; an empty vector on other ranks. Collective.
std::vector<Trace> gather_traces(Engine& engine, const Trace& mine, Deadline deadline);

/// Explains the waits in the traces of `history`, whose times are on one clock, and writes the wanted files, each
/// completely or not at all. Throws SourceError.
void write_history(const HistoryFiles& files, const report::FeedReport& report, report::FeedHistory history);
/// Does the same for a pipeline that no feed reads.
void write_history(const HistoryFiles& files, const report::PipelineReport& pipeline);

}  // namespace levada::cli
