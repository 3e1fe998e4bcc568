// A feed as a page for a browser: one file, nothing fetched from anywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/trace.h"
#include "levada/report/feed_report.h"
#include "levada/report/pipeline_report.h"

namespace levada::report {

/// What one rank was sent by another, or by itself.
struct FeedEdge {
  int from = 0;
  int to = 0;
  std::uint64_t bytes = 0;
};

/// What a page shows beyond the report.
struct FeedHistory {
  std::vector<std::string> paths;  ///< what was read
  std::vector<Trace> traces;       ///< those that explain_waits() gave, by rank; empty ones where nothing is known
  std::vector<FeedEdge> edges;
  std::vector<PipelineReport> pipelines;  ///< that ranks read from
  std::string error;                      ///< why the feed failed; empty if it did not
};

/// Text that a browser shows as it is, in elements and in quoted attributes.
std::string escape_html(std::string_view text);

/// "Ranks waited 34% of the time, 91% of that while rank 0 was reading storage: ...": what stands out, and what may
/// help; where ranks waited for a pipeline, which of its stages holds the rest back. Empty where nothing was recorded.
std::string find_bottleneck(const FeedReport& report, const std::vector<Trace>& traces,
                            const std::vector<PipelineReport>& pipelines = {});

/// The whole page. Readable without scripts; when its script has run, the root element has the attribute data-ready.
std::string feed_page(const FeedReport& report, const FeedHistory& history);

}  // namespace levada::report
