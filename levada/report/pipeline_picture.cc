// The graph of a pipeline as SVG: processes side by side, the stages of each from top to bottom.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "levada/report/feed_html.h"
#include "levada/report/numbers.h"
#include "levada/report/pipeline_html.h"

namespace levada::report {
namespace {

constexpr int node_width = 186, node_height = 62, across = 18, down = 24, head = 34, margin = 16, between = 64;
constexpr int caller_width = 74, shadow = 5;

struct Node {
  std::size_t stage = 0;
  bool passes_on = false;  ///< what a worker has for a stage where it has none
  int column = 0, level = 0;
  int x = 0, y = 0;  ///< once its box has a place
};

struct Box {
  PipelineRole role = PipelineRole::consumer;
  std::vector<Node> nodes;
  int x = 0, columns = 1, levels = 1;

  int width() const { return 2 * margin + columns * node_width + (columns - 1) * across; }
  int height() const { return head + margin + levels * node_height + (levels - 1) * down; }
};

bool passes_on(const PipelineReport& pipeline) {
  return pipeline.dealt && pipeline.dealt == pipeline.gathered;
}

/// Below its inputs of the same process and, where there is room, straight below the first.
Node placed(const PipelineReport& pipeline, const Box& box, std::size_t stage) {
  Node node{.stage = stage};
  bool follows = false;
  for (const Node& before : box.nodes) {
    const auto& inputs = pipeline.stages[stage].inputs;
    if (std::find(inputs.begin(), inputs.end(), before.stage) == inputs.end()) continue;
    node.column = follows ? std::min(node.column, before.column) : before.column;
    node.level = std::max(node.level, before.level + 1);
    follows = true;
  }
  const auto is_taken = [&] {
    return std::any_of(box.nodes.begin(), box.nodes.end(),
                       [&](const Node& other) { return other.level == node.level && other.column == node.column; });
  };
  while (is_taken()) ++node.column;
  return node;
}

std::vector<Box> boxes_of(const PipelineReport& pipeline) {
  std::vector<Box> boxes;
  int x = shadow;
  for (const auto role : {PipelineRole::dispatcher, PipelineRole::worker, PipelineRole::consumer}) {
    Box box{.role = role, .nodes = {}, .x = x};
    for (std::size_t stage = 0; stage < pipeline.stages.size(); ++stage) {
      if (pipeline.stages[stage].role == role) box.nodes.push_back(placed(pipeline, box, stage));
    }
    if (role == PipelineRole::worker && passes_on(pipeline)) box.nodes.push_back({.passes_on = true});
    if (box.nodes.empty()) continue;
    for (const Node& node : box.nodes) {
      box.columns = std::max(box.columns, node.column + 1);
      box.levels = std::max(box.levels, node.level + 1);
    }
    for (Node& node : box.nodes) {
      node.x = box.x + margin + node.column * (node_width + across);
      node.y = shadow + head + node.level * (node_height + down);
    }
    x += box.width() + between;
    boxes.push_back(std::move(box));
  }
  return boxes;
}

/// At most so many characters, the last of which then says that there are more.
std::string shortened(const std::string& text, std::size_t most) {
  std::size_t count = 0, end = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
    if (begins && ++count == most) end = at;
  }
  return count <= most ? text : text.substr(0, end) + "…";
}

std::string title_of(const PipelineReport& pipeline, PipelineRole role) {
  if (role != PipelineRole::worker) return role == PipelineRole::dispatcher ? "dispatching process" : "consumer";
  return counted(pipeline.workers, "worker");
}

/// Of all processes, and a second of the pipeline's time.
double rate_of(const PipelineReport& pipeline, std::size_t stage) {
  double items = 0;
  for (const auto& process : pipeline.processes) items += static_cast<double>(process.stages[stage].items);
  return pipeline.seconds > 0 ? items / pipeline.seconds : 0;
}

/// Of the time of each process that runs it.
double share_at_work(const PipelineReport& pipeline, std::size_t stage) {
  double busy = 0, time = 0;
  for (const auto& process : pipeline.processes) {
    if (process.role != pipeline.stages[stage].role) continue;
    busy += process.stages[stage].busy_seconds;
    time += pipeline.seconds;
  }
  return time > 0 ? std::min(busy / time, 1.0) : 0;
}

std::string label(int x, int y, std::string_view style, const std::string& text) {
  return fmt::format(R"(<text x="{}" y="{}" class="{}">{}</text>)", x, y, style, escape_html(text));
}

std::string node_svg(const PipelineReport& pipeline, const Node& node) {
  if (node.passes_on) {
    return fmt::format(R"(<g class="node"><rect x="{}" y="{}" width="{}" height="{}" rx="8"/>{}</g>)", node.x, node.y,
                       node_width, node_height, label(node.x + 12, node.y + 35, "what", "pass on"));
  }
  const StageReport& stage = pipeline.stages[node.stage];
  const double share = share_at_work(pipeline, node.stage);
  const bool slowest = pipeline.holds_back == node.stage;
  auto svg = fmt::format(R"(<g class="node{}" data-stage="{}"><title>{}: {}</title>)", slowest ? " slowest" : "",
                         escape_html(stage.name), escape_html(stage.name), escape_html(stage.what));
  svg += fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" rx="8"/>)", node.x, node.y, node_width, node_height);
  svg += label(node.x + 12, node.y + 20, "name", shortened(stage.name, 22));
  svg += label(node.x + 12, node.y + 36, "what", shortened(stage.what, 24));
  svg += label(node.x + 12, node.y + 51, "what",
               fmt::format("{}/s, works {}", in_thousands(rate_of(pipeline, node.stage)), format_share(share)));
  const int room = node_width - 16;
  svg += fmt::format(R"(<path class="meter" d="M{0} {1}h{2}"/><path class="meter full" d="M{0} {1}h{3:.1f}"/></g>)",
                     node.x + 8, node.y + node_height - 4, room, room * share);
  return svg + "\n";
}

std::string box_svg(const PipelineReport& pipeline, const Box& box) {
  std::string svg = R"(<g class="process">)";
  const int copies = box.role == PipelineRole::worker ? std::min(pipeline.workers, 3) : 1;
  for (int copy = copies - 1; copy >= 0; --copy) {
    svg += fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" rx="12"/>)", box.x + copy * shadow,
                       shadow + copy * shadow, box.width(), box.height());
  }
  svg += label(box.x + margin, shadow + 22, "role", title_of(pipeline, box.role));
  for (const Node& node : box.nodes) svg += node_svg(pipeline, node);
  return svg + "</g>\n";
}

struct Point {
  int x = 0, y = 0;
};

/// From one node to another, straight down within a process, else from side to side.
std::string arrow(const Node& from, Point to, bool within) {
  if (within) {
    const Point begin{from.x + node_width / 2, from.y + node_height};
    return fmt::format(R"(<path class="way" d="M{0} {1}V{2}C{0} {4} {3} {2} {3} {4}"/>)", begin.x, begin.y, to.y - down,
                       to.x, to.y - 2);
  }
  const Point begin{from.x + node_width, from.y + node_height / 2};
  return fmt::format(R"(<path class="way crosses" d="M{} {}C{} {} {} {} {} {}"/>)", begin.x, begin.y, begin.x + between,
                     begin.y, to.x - between, to.y, to.x - 2, to.y);
}

/// Where a stage's items leave from and go to.
class Ways {
 public:
  Ways(const PipelineReport& pipeline, const std::vector<Box>& boxes) : pipeline_(pipeline) {
    nodes_.resize(pipeline.stages.size());
    for (const Box& box : boxes) {
      for (const Node& node : box.nodes) (node.passes_on ? pass_ : nodes_[node.stage]) = node;
    }
  }

  std::string svg(Point caller) const {
    std::string svg;
    for (std::size_t stage = 0; stage < nodes_.size(); ++stage) {
      for (const std::size_t input : pipeline_.stages[stage].inputs) svg += way(input, stage);
    }
    if (passes_on(pipeline_)) svg += arrow(nodes_[*pipeline_.dealt], side_of(pass_), false);
    return svg + arrow(leaves_from(nodes_.size() - 1), caller, false);
  }
  /// The node that gives the caller its items.
  const Node& last() const { return leaves_from(nodes_.size() - 1); }

 private:
  static Point side_of(const Node& node) { return {node.x, node.y + node_height / 2}; }
  const Node& leaves_from(std::size_t stage) const {
    return passes_on(pipeline_) && stage == *pipeline_.dealt ? pass_ : nodes_[stage];
  }
  std::string way(std::size_t from, std::size_t to) const {
    const bool within = pipeline_.stages[from].role == pipeline_.stages[to].role;
    const Node& node = nodes_[to];
    return arrow(leaves_from(from), within ? Point{node.x + node_width / 2, node.y} : side_of(node), within);
  }

  const PipelineReport& pipeline_;
  std::vector<Node> nodes_;
  Node pass_;
};

}  // namespace

std::string pipeline_picture(const PipelineReport& pipeline) {
  const auto boxes = boxes_of(pipeline);
  const Ways ways(pipeline, boxes);
  const Point caller{boxes.back().x + boxes.back().width() + between, ways.last().y + node_height / 2};
  const int width = caller.x + caller_width + shadow;
  int height = 0;
  for (const Box& box : boxes) height = std::max(height, box.height() + 4 * shadow);
  std::string svg = fmt::format(
      R"(<div class="wide"><svg class="graph" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" )"
      R"(aria-label="the stages of the pipeline and their processes"><defs><marker id="tip-{2}" viewBox="0 0 8 8" )"
      R"(refX="7" refY="4" markerUnits="userSpaceOnUse" markerWidth="9" markerHeight="9" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>)",
      width, height, pipeline.rank);
  for (const Box& box : boxes) svg += box_svg(pipeline, box);
  svg += fmt::format(R"svg(<g marker-end="url(#tip-{})">{}</g>)svg", pipeline.rank, ways.svg(caller));
  svg += fmt::format(R"(<rect class="caller" x="{}" y="{}" width="{}" height="32" rx="16"/>)", caller.x, caller.y - 16,
                     caller_width);
  svg += fmt::format(R"(<text x="{}" y="{}" class="what middle">{}</text>)", caller.x + caller_width / 2, caller.y + 4,
                     pipeline.rank < 0 ? "your loop" : "the feed");
  return svg + "</svg></div>\n";
}

}  // namespace levada::report
