// A page for a browser that shows what happened in a feed or a pipeline: one file that loads nothing from elsewhere.
//
// The page is page.html with page.css and page.js, which the build embeds in the library. Its script draws the page
// from the JSON embedded in it. Only one table of that JSON grows with the number of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levada/base/trace.h"
#include "levada/report/feed_report.h"
#include "levada/report/pipeline_report.h"

namespace levada::report {

/// The bytes that one rank received from another, or from itself.
struct FeedEdge {
  int from = 0;
  int to = 0;
  std::uint64_t bytes = 0;
};

/// The data that a page shows in addition to the report.
struct FeedHistory {
  std::vector<std::string> paths;  ///< the data that was read
  std::vector<Trace> traces;       ///< by rank, as returned by explain_waits(); empty if nothing was recorded
  std::vector<FeedEdge> edges;
  std::vector<PipelineReport> pipelines;  ///< pipelines that ranks read from
  std::string error;                      ///< reason that the feed failed; empty if it did not
};

/// Returns a finding, such as "Ranks waited 34% of the time, 91% of that while rank 0 was reading storage: ...", and a
/// possible remedy. If that rank reads from a pipeline, the pipeline's finding follows. Empty without traces.
std::string find_bottleneck(const FeedReport& report, const std::vector<Trace>& traces,
                            const std::vector<PipelineReport>& pipelines = {});

/// Returns the JSON that the page of a feed draws.
std::string feed_json(const FeedReport& report, const FeedHistory& history);

/// Returns the page. When its script has drawn everything, the root element has the attribute data-ready, in
/// milliseconds since the page was opened; if the script fails, data-error.
std::string feed_page(const FeedReport& report, const FeedHistory& history);
/// The same for a pipeline that no feed reads from.
std::string pipeline_page(const PipelineReport& pipeline);

}  // namespace levada::report
