#include "levada/pipeline/show.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "levada/base/json.h"
#include "levada/plan/text.h"

namespace levada::pipeline {
namespace {

using Json = nlohmann::ordered_json;

Role role_of(const GraphView& view, int stage) {
  return view.placement.role_of[static_cast<std::size_t>(stage)];
}

/// Returns the number of processes that run a stage.
int copies(const GraphView& view, Role role) {
  return role == Role::worker ? std::max(view.workers, 1) : 1;
}

/// All parameters of an operation that are not functions. A cache relies on them to distinguish its items from others.
struct Parameters {
  Json operator()(const Source& s) const { return {{"source", s.items->describe()}}; }
  Json operator()(const Map& s) const {
    auto json = of(s.on_error);
    if (s.threads > 0) json["threads"] = s.threads;
    return json;
  }
  Json operator()(const Filter& s) const { return of(s.on_error); }
  Json operator()(const FlatMap& s) const { return of(s.on_error); }
  Json operator()(const Batch& s) const { return {{"size", s.size}, {"drop_last", s.drop_last}}; }
  Json operator()(const BucketBatch& s) const {
    return {{"boundaries", s.boundaries},
            {"size", or_null(s.size)},
            {"max_tokens", or_null(s.max_tokens)},
            {"drop_last", s.drop_last}};
  }
  Json operator()(const Pack& s) const {
    // All of its parameters; those with default values are omitted.
    const auto& [sequence, method, buffer, pad_to, partial, too_long, max_documents, tokens, ids] = s;
    const Pack usual;
    Json json = {{"method", method == Packing::cut ? "cut" : "best-fit"}, {"sequence", sequence}};
    if (method == Packing::best_fit) json["buffer"] = buffer;
    if (pad_to != usual.pad_to) json["pad_to"] = pad_to;
    if (partial != usual.partial) json["partial"] = "drop";
    if (too_long != usual.too_long) json["too_long"] = "error";
    if (max_documents) json["max_documents"] = *max_documents;
    if (tokens != usual.tokens) json["tokens"] = tokens;
    if (ids != usual.ids) json["dtype"] = ids.name();
    return json;
  }
  Json operator()(const Interleave& s) const {
    const auto* stop = s.stop == StopAt::first_end ? "first" : s.stop == StopAt::last_end ? "last" : "cycle";
    return {{"weights", s.weights}, {"stop", stop}, {"seed", or_null(s.seed)}};
  }
  Json operator()(const Shuffle& s) const { return {{"buffer", s.buffer}, {"seed", or_null(s.seed)}}; }
  Json operator()(const Take& s) const { return {{"count", s.count}}; }
  Json operator()(const Skip& s) const { return {{"count", s.count}}; }
  Json operator()(const Repeat& s) const { return {{"times", or_null(s.times)}}; }
  Json operator()(const Cache& s) const { return {{"folder", s.folder}, {"key", s.key}}; }
  Json operator()(const Fork& s) const { return {{"branches", s.branches}, {"buffer", s.buffer}}; }
  Json operator()(const Branch& s) const { return {{"index", s.index}}; }
  Json operator()(const Prefetch& s) const { return {{"depth", s.depth}}; }
  Json operator()(const Transform& s) const { return {{"what", s.what}}; }
  Json operator()(const auto&) const { return Json::object(); }

 private:
  static Json or_null(const auto& value) { return value ? Json(*value) : Json(nullptr); }
  static Json of(OnError on_error) { return on_error == OnError::skip ? Json{{"on_error", "skip"}} : Json::object(); }
};

}  // namespace

std::string describe(const Operation& operation) {
  std::string text(operation_name(operation));
  const Json all = std::visit(Parameters{}, operation);
  for (const auto& [name, value] : all.items()) {
    if (value.is_null() || value == Json(false)) continue;
    const std::string shown = value.is_string() ? value.get<std::string>() : json_text(value);
    const bool says_all = name == "source" || name == "what";
    text += value == Json(true) ? " " + name : says_all ? " " + shown : fmt::format(" {}={}", name, shown);
  }
  return text;
}

namespace {

std::string describe_process(const GraphView& view, int stage) {
  const Role role = role_of(view, stage);
  return copies(view, role) == 1 ? std::string(to_string(role)) : fmt::format("{} x{}", to_string(role), view.workers);
}

std::vector<std::string> input_names(const GraphView& view, const Stage& stage) {
  std::vector<std::string> names;
  for (const int input : stage.inputs) names.push_back(view.graph.stage(input).name);
  return names;
}

const protocol::StageTotals* stats_of(const GraphView& view, int stage) {
  if (view.stats == nullptr || static_cast<std::size_t>(stage) >= view.stats->stages.size()) return nullptr;
  return &view.stats->stages[static_cast<std::size_t>(stage)];
}

double per_second(const GraphView& view, const protocol::StageTotals& of) {
  return view.stats->seconds > 0 ? static_cast<double>(of.items) / view.stats->seconds : 0;
}

/// Returns `seconds` as a fraction of the time of all processes that run the stage.
double part_of_time(const GraphView& view, int stage, double seconds) {
  const double time = view.stats->seconds * copies(view, role_of(view, stage));
  return time > 0 ? seconds / time : 0;
}

std::string percent(double part) {
  return fmt::format("{:.0f} %", 100 * part);
}
std::string rate(double per_second) {
  return fmt::format("{:.{}f}", per_second, per_second < 100 ? 1 : 0);
}

/// Returns, per kind of process, the fraction of its time that its stages take together.
std::array<double, 3> loads(const GraphView& view) {
  std::array<double, 3> sums{};
  for (int stage = 0; stage <= view.graph.end(); ++stage) {
    if (const auto* of = stats_of(view, stage)) {
      sums[static_cast<std::size_t>(role_of(view, stage))] += part_of_time(view, stage, of->busy_seconds());
    }
  }
  return sums;
}

/// Returns a remedy for a bottleneck at `stage`.
std::string advice(const GraphView& view, int stage) {
  if (view.workers == 0) {
    return "All stages run in one process; with workers, the stages after dispatch() or shard() would run in parallel.";
  }
  switch (role_of(view, stage)) {
    case Role::worker: return "Make it faster, or let more workers share it.";
    case Role::dispatcher:
      return view.graph.stage(stage).inputs.empty()
                 ? "One process runs it. If the items of the source are numbered, replace dispatch() with shard() "
                   "right after the source, so that each worker reads its own part."
                 : "One process runs it. If it can be copied, put it after dispatch(), so that the workers share it.";
    case Role::consumer: break;
  }
  return "The process whose loop takes the items runs it. Workers would share it if it came before any stage that "
         "needs all ranks or the order of one process.";
}

/// Describes how items flow between processes.
std::string ways(const GraphView& view) {
  const Placement& placement = view.placement;
  if (!placement.collect_boundary) return "no workers: the consumer runs all\n";
  const auto workers = fmt::format("{} worker{}", view.workers, view.workers == 1 ? "" : "s");
  const auto dispatches = placement.dispatch_boundary ? fmt::format(", to which items of {} are dealt in turn",
                                                                    view.graph.stage(*placement.dispatch_boundary).name)
                                                      : std::string();
  return fmt::format("{}{}{}\n", workers, dispatches,
                     placement.one_to_one ? "; one-to-one: the order is that of one process" : "");
}

/// Returns a process and the counters of its stages.
Json process_json(const GraphView& view, const Stats::OfProcess& process) {
  Json stages = Json::array();
  for (int i = 0; i <= view.graph.end() && static_cast<std::size_t>(i) < process.stages.size(); ++i) {
    if (role_of(view, i) != process.role) continue;
    const auto& of = process.stages[static_cast<std::size_t>(i)];
    stages.push_back({{"name", view.graph.stage(i).name},
                      {"items", of.items},
                      {"skipped", of.skipped},
                      {"busy_s", of.busy_seconds()},
                      {"waited_s", of.waited_seconds()}});
  }
  return {{"name", process.name}, {"role", to_string(process.role)}, {"stages", std::move(stages)}};
}

/// Escapes text for a label in double quotes.
std::string escape_mermaid(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '"':
      case '<':
      case '>':
      case '&':
      case '#':
      case '`':
      case '\\': escaped += fmt::format("#{};", static_cast<int>(c)); break;
      case '\n':
      case '\r': escaped += ' '; break;
      default: escaped += c;
    }
  }
  return escaped;
}

std::string mermaid_stage(const GraphView& view, int stage) {
  const auto& [name, operation, inputs, colocated] = view.graph.stage(stage);
  const std::string what = describe(operation);
  std::string label = escape_mermaid(name);
  if (what != name) label += "<br/>" + escape_mermaid(what);
  if (const auto* of = stats_of(view, stage)) label += fmt::format("<br/>{} items/s", rate(per_second(view, *of)));
  return fmt::format("s{}[\"{}\"]", stage, label);
}

std::string mermaid_box(const GraphView& view, Role role) {
  std::string stages;
  for (int stage = 0; stage <= view.graph.end(); ++stage) {
    if (role_of(view, stage) == role) stages += fmt::format("    {}\n", mermaid_stage(view, stage));
  }
  const Placement& placement = view.placement;
  const bool passes_on = placement.dispatch_boundary && placement.dispatch_boundary == placement.collect_boundary;
  if (role == Role::worker && passes_on) stages += "    pass[\"pass on\"]\n";
  if (stages.empty()) return {};
  const auto title = copies(view, role) == 1 ? std::string(to_string(role)) : fmt::format("{} workers", view.workers);
  return fmt::format("  subgraph {}[\"{}\"]\n{}  end\n", to_string(role), title, stages);
}

/// Returns the edge from `stage` to `to`: thick if items cross to another process.
std::string mermaid_edge(const GraphView& view, int stage, const std::string& to, bool crosses) {
  if (stage == view.placement.dispatch_boundary && stage == view.placement.collect_boundary) {
    return fmt::format("  s{} == in turn ==> pass\n  pass ==> {}\n", stage, to);
  }
  const bool deals = stage == view.placement.dispatch_boundary;
  return fmt::format("  s{} {} {}\n", stage, !crosses ? "-->" : deals ? "== in turn ==>" : "==>", to);
}

}  // namespace

std::vector<Metric> metrics(const Graph& graph, const Stats& stats, const MetricLabels& labels) {
  std::vector<Metric> all;
  for (std::size_t at = 0; at < stats.stages.size(); ++at) {
    auto of_stage = labels;
    of_stage.emplace_back("stage", graph.stages()[at].name);
    const auto add = [&](std::string_view name, std::string_view help, auto value) {
      all.push_back({.name = name, .help = help, .labels = of_stage, .value = static_cast<double>(value)});
    };
    const protocol::StageTotals& of = stats.stages[at];
    add("levada_pipeline_items_total", "Items that the stage has yielded, in all processes.", of.items);
    add("levada_pipeline_skipped_total", "Items that the stage has skipped because they failed.", of.skipped);
    add("levada_pipeline_busy_seconds_total", "Time that the stage has worked, over all processes.", of.busy_seconds());
    add("levada_pipeline_wait_seconds_total", "Time that the stage has waited for its inputs.", of.waited_seconds());
  }
  const auto add = [&](std::string_view name, std::string_view help, auto value) {
    all.push_back({.name = name, .help = help, .labels = labels, .value = static_cast<double>(value)});
  };
  add("levada_pipeline_messages_total", "Messages with items, to and from workers.", stats.messages);
  add("levada_pipeline_bytes_total", "Bytes of those items.", stats.bytes);
  add("levada_pipeline_copied_bytes_total", "The part of those bytes that was copied.", stats.copied);
  return all;
}

std::optional<Bottleneck> bottleneck(const GraphView& view) {
  if (view.stats == nullptr) return std::nullopt;
  const auto of = loads(view);
  const auto busiest = static_cast<Role>(std::ranges::max_element(of) - of.begin());
  if (of[static_cast<std::size_t>(busiest)] < 0.5) return std::nullopt;
  Bottleneck found;
  for (int stage = 0; stage <= view.graph.end(); ++stage) {
    const auto* stats = stats_of(view, stage);
    if (stats == nullptr || role_of(view, stage) != busiest) continue;
    if (const double load = part_of_time(view, stage, stats->busy_seconds()); load > found.load) found = {stage, load};
  }
  return found;
}

std::string describe_bottleneck(const GraphView& view) {
  const auto found = bottleneck(view);
  if (!found) {
    return fmt::format(
        "No stage is the bottleneck: the busiest process works {:.0f}% of the time, so the loop that takes the items "
        "sets the pace.",
        100 * std::ranges::max(loads(view)));
  }
  const Role role = role_of(view, found->stage);
  const auto whose = copies(view, role) > 1 ? std::string("each worker") : fmt::format("the {}", to_string(role));
  return fmt::format("{} is the bottleneck: it takes {:.0f}% of {}'s time. {}", view.graph.stage(found->stage).name,
                     100 * std::min(found->load, 1.0), whose, advice(view, found->stage));
}

std::string to_text(const GraphView& view) {
  const bool at_work = view.stats != nullptr;
  TextTable::Row head = {"stage", "operation", "process", "after"};
  std::vector<bool> right = {false, false, false, false};
  for (const char* column : {"items", "items/s", "skipped", "busy", "waited"}) {
    if (at_work) head.emplace_back(column);
    if (at_work) right.push_back(true);
  }
  TextTable table(head);
  for (int i = 0; i <= view.graph.end(); ++i) {
    const Stage& stage = view.graph.stage(i);
    TextTable::Row row = {stage.name, describe(stage.operation), describe_process(view, i),
                          fmt::format("{}", fmt::join(input_names(view, stage), ", "))};
    if (const auto* of = stats_of(view, i)) {
      row.insert(row.end(), {fmt::format("{}", of->items), rate(per_second(view, *of)), fmt::format("{}", of->skipped),
                             percent(part_of_time(view, i, of->busy_seconds())),
                             percent(part_of_time(view, i, of->waited_seconds()))});
    }
    row.resize(head.size());
    table.add(std::move(row));
  }
  return table.to_string(right) + "\n" + ways(view) + (at_work ? describe_bottleneck(view) + "\n" : "");
}

std::string to_json(const GraphView& view) {
  const auto name_or_null = [&](std::optional<int> stage) {
    return stage ? Json(view.graph.stage(*stage).name) : Json(nullptr);
  };
  Json json = {{"workers", view.workers},
               {"dispatch_boundary", name_or_null(view.placement.dispatch_boundary)},
               {"collect_boundary", name_or_null(view.placement.collect_boundary)},
               {"one_to_one", view.placement.one_to_one},
               {"stages", Json::array()}};
  for (int i = 0; i <= view.graph.end(); ++i) {
    const Stage& stage = view.graph.stage(i);
    Json shown = {{"name", stage.name},
                  {"operation", operation_name(stage.operation)},
                  {"what", describe(stage.operation)},
                  {"parameters", std::visit(Parameters{}, stage.operation)},
                  {"process", to_string(role_of(view, i))},
                  {"inputs", input_names(view, stage)}};
    if (const auto* of = stats_of(view, i)) {
      shown["items"] = of->items;
      shown["items_per_s"] = per_second(view, *of);
      shown["skipped"] = of->skipped;
      shown["busy_s"] = of->busy_seconds();
      shown["waited_s"] = of->waited_seconds();
    }
    json["stages"].push_back(std::move(shown));
  }
  if (view.stats != nullptr) {
    const auto found = bottleneck(view);
    json["seconds"] = view.stats->seconds;
    json["bottleneck"] = found ? Json(view.graph.stage(found->stage).name) : Json(nullptr);
    json["load"] = found ? found->load : std::ranges::max(loads(view));
    json["finding"] = describe_bottleneck(view);
    json["processes"] = Json::array();
    for (const auto& process : view.stats->processes) json["processes"].push_back(process_json(view, process));
  }
  return json_text(json);
}

std::string to_mermaid(const GraphView& view) {
  std::string text = "flowchart LR\n";
  for (const Role role : {Role::dispatcher, Role::worker, Role::consumer}) text += mermaid_box(view, role);
  text += "  caller((\"caller\"))\n";
  for (int i = 0; i <= view.graph.end(); ++i) {
    for (const int input : view.graph.stage(i).inputs) {
      text += mermaid_edge(view, input, fmt::format("s{}", i), role_of(view, input) != role_of(view, i));
    }
  }
  const int end = view.graph.end();
  return text + mermaid_edge(view, end, "caller", role_of(view, end) != Role::consumer);
}

}  // namespace levada::pipeline
