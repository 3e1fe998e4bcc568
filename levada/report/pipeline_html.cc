#include "levada/report/pipeline_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "levada/report/feed_html.h"
#include "levada/report/feed_page_assets.h"
#include "levada/report/numbers.h"

namespace levada::report {
namespace {

/// How a stage spent the time in one process. What is left of it, the stage was not asked for items.
struct Shares {
  double working = 0, input = 0, room = 0;

  static Shares of(const StageCountsReport& counts, double seconds) {
    if (!(seconds > 0)) return {};
    const double working = std::min(counts.busy_seconds / seconds, 1.0);
    const double input = std::min(counts.waited_seconds / seconds, 1 - working);
    return {working, input, 1 - working - input};
  }
};

std::string bar(const Shares& shares) {
  std::string html = R"(<div class="bar">)";
  const std::array parts = {std::tuple("work", "working", shares.working),
                            std::tuple("input", "waiting for input", shares.input),
                            std::tuple("rest", "waiting for room", shares.room)};
  for (const auto& [style, what, share] : parts) {
    if (share <= 0) continue;
    html += fmt::format(R"(<i class="k-{}" style="width:{:.2f}%" title="{} {}"></i>)", style, 100 * share, what,
                        format_share(share));
  }
  return html + "</div>";
}

std::vector<const PipelineProcessReport*> in_order(const PipelineReport& pipeline) {
  std::vector<const PipelineProcessReport*> processes;
  for (const auto& process : pipeline.processes) processes.push_back(&process);
  std::stable_sort(processes.begin(), processes.end(), [](const auto* a, const auto* b) { return a->role < b->role; });
  return processes;
}

std::vector<std::size_t> stages_in(const PipelineReport& pipeline, PipelineRole role) {
  std::vector<std::size_t> stages;
  for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
    if (pipeline.stages[i].role == role) stages.push_back(i);
  }
  return stages;
}

std::string row(const PipelineReport& pipeline, const PipelineProcessReport& process, std::size_t stage) {
  const auto& counts = process.stages[stage];
  const auto shares = Shares::of(counts, pipeline.seconds);
  const double rate = pipeline.seconds > 0 ? static_cast<double>(counts.items) / pipeline.seconds : 0;
  const auto skipped = counts.skipped == 0
                           ? std::string()
                           : fmt::format(R"(<span class="tag">{} skipped</span>)", with_commas(counts.skipped));
  const bool slowest = pipeline.holds_back == stage;
  return fmt::format(R"(<td>{}{}</td><td class="n">{}{}</td><td class="n">{}</td><td class="n">{}</td>)"
                     R"(<td class="n">{}</td><td class="n">{}</td><td>{}</td></tr>)"
                     "\n",
                     escape_html(pipeline.stages[stage].name),
                     slowest ? R"(<span class="tag slowest">holds the rest back</span>)" : "",
                     with_commas(counts.items), skipped, in_thousands(rate), format_share(shares.working),
                     format_share(shares.input), format_share(shares.room), bar(shares));
}

std::string rows(const PipelineReport& pipeline, const PipelineProcessReport& process) {
  const auto stages = stages_in(pipeline, process.role);
  std::string html;
  for (const std::size_t stage : stages) {
    html += fmt::format(R"(<tr data-process="{}" data-stage="{}">)", escape_html(process.name),
                        escape_html(pipeline.stages[stage].name));
    if (stage == stages.front()) {
      html += fmt::format(R"(<th scope="rowgroup" rowspan="{}">{}</th>)", stages.size(), escape_html(process.name));
    }
    html += row(pipeline, process, stage);
  }
  return html;
}

constexpr std::string_view legend =
    R"(<ul class="legend"><li><i class="swatch k-work"></i>working</li><li><i class="swatch k-input"></i>waiting for )"
    R"(input: what is before it has nothing yet</li><li><i class="swatch k-rest"></i>waiting for room: what is behind )"
    R"(it has not asked for more</li></ul>)"
    "\n";

std::string facts(const PipelineReport& pipeline) {
  return fmt::format("{} &middot; {} &middot; {} of epochs", counted(std::ssize(pipeline.stages), "stage"),
                     pipeline.workers == 0 ? "no workers" : counted(pipeline.workers, "worker"),
                     format_seconds(pipeline.seconds));
}

std::string title(const PipelineReport& pipeline) {
  return pipeline.rank < 0 ? std::string("Stages") : fmt::format("Pipeline that rank {} reads from", pipeline.rank);
}

}  // namespace

std::string pipeline_table(const PipelineReport& pipeline) {
  std::string html =
      R"(<div class="scroll"><table class="ranks stages"><thead><tr><th scope="col">process</th>)"
      R"(<th scope="col">stage</th><th scope="col" class="n">items</th><th scope="col" class="n">a second</th>)"
      R"(<th scope="col" class="n">working</th><th scope="col" class="n">waits for input</th>)"
      R"(<th scope="col" class="n">waits for room</th><th scope="col">its time</th></tr></thead><tbody>)"
      "\n";
  for (const auto* process : in_order(pipeline)) html += rows(pipeline, *process);
  return html + "</tbody></table></div>\n";
}

std::string pipeline_section(const PipelineReport& pipeline) {
  return fmt::format(
      R"(<section class="card pipeline" id="pipeline{}"><h2>{}</h2><p class="about">{}. Stages before the one that )"
      R"(holds the rest back wait for room, those behind it for input.</p>)"
      "\n<p class=\"bottleneck\">{}</p>\n{}{}{}</section>\n",
      pipeline.rank < 0 ? "" : fmt::format("-{}", pipeline.rank), title(pipeline), facts(pipeline),
      escape_html(find_bottleneck(pipeline)), pipeline_picture(pipeline), legend, pipeline_table(pipeline));
}

std::string pipeline_page(const PipelineReport& pipeline) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>levada "
      "pipeline</title>\n<style>";
  html += feed_page_style;
  html += "</style>\n</head>\n<body>\n<main>\n<p class=\"eyebrow\">levada</p>\n<h1>Pipeline</h1>\n";
  html += pipeline_section(pipeline);
  return html + "<footer>Written by levada.</footer>\n</main>\n</body>\n</html>\n";
}

}  // namespace levada::report
