// What happened in a feed, for `--report` and `--trace`: gathered from the ranks, written to files.
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
  bool tell = true;    ///< on standard error, where they are

  bool wanted() const { return !report.empty() || !trace.empty(); }
};

/// The files, by the options that name them.
std::vector<OutputFile> outputs_of(const HistoryFiles& files);

/// Bounded so that rank 0 can hold those of all ranks.
TraceLog make_trace_log(int ranks);

/// Returns nanoseconds on this process's steady clock.
using ReadClock = std::function<std::int64_t()>;
inline std::int64_t read_clock() {
  return trace_time(Clock::now());
}

/// On rank 0, by rank: what to add to a time of the rank's clock to get that of rank 0's. 0 for ranks of rank 0's host,
/// and of a host whose ranks have all left. Empty on other ranks. Collective.
std::vector<std::int64_t> clock_shifts(Engine& engine, Deadline deadline, const std::function<void()>* poll = nullptr,
                                       const ReadClock& now = read_clock);

/// What a rank has sent to rank 0.
struct RankMessage {
  Bytes bytes;                      ///< empty if the rank has left
  std::int64_t clock_shift_ns = 0;  ///< to be added to all times in it, which are of that rank's clock
};

/// Everybody's bytes, by rank, on rank 0; none on others. Collective. May be large.
std::vector<RankMessage> gather(Engine& engine, ByteView mine, Deadline deadline,
                                const std::function<void()>* poll = nullptr);

/// All ranks' traces, by rank, with times of rank 0's clock, on rank 0; none on others. Collective.
std::vector<Trace> gather_traces(Engine& engine, const Trace& mine, Deadline deadline);

/// Explains the waits in the traces of `history`, whose times are of one clock, and writes the files that are wanted,
/// each whole or not at all. Throws SourceError.
void write_history(const HistoryFiles& files, const report::FeedReport& report, report::FeedHistory history);
/// The same of a pipeline that no feed reads.
void write_history(const HistoryFiles& files, const report::PipelineReport& pipeline);

}  // namespace levada::cli
