// A pipeline on a page: which stage holds the rest back, its graph with its processes, and what each stage did where.
#pragma once

#include <string>

#include "levada/report/pipeline_report.h"

namespace levada::report {

/// The graph with a box a process, as SVG that needs the page's style.
std::string pipeline_picture(const PipelineReport& pipeline);

/// A row a stage and process.
std::string pipeline_table(const PipelineReport& pipeline);

/// A section of a page. Its element has the id "pipeline", or "pipeline-3" of what rank 3 of a feed read from.
std::string pipeline_section(const PipelineReport& pipeline);

/// A page of its own.
std::string pipeline_page(const PipelineReport& pipeline);

}  // namespace levada::report
