// What happened in a feed, for `--report` and `--trace`: gathered from the ranks, written to files.
#pragma once

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

/// Everybody's bytes, by rank, on rank 0; none on others. Collective. May be large; an empty message comes of a rank
/// that has left.
std::vector<Bytes> gather(Engine& engine, ByteView mine, Deadline deadline,
                          const std::function<void()>* poll = nullptr);

/// All ranks' traces, by rank, on rank 0; none on others. Collective.
std::vector<Trace> gather_traces(Engine& engine, const Trace& mine, Deadline deadline);

/// Writes the files that are wanted, each whole or not at all. `history` has traces as
/// they were recorded. Throws SourceError.
void write_history(const HistoryFiles& files, const report::FeedReport& report, report::FeedHistory history);
/// The same of a pipeline that no feed reads.
void write_history(const HistoryFiles& files, const report::PipelineReport& pipeline);

}  // namespace levada::cli
