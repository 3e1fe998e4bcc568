// The JSON that a page draws. Its size is bounded, except for the table of ranks, which grows with their number.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include "levada/base/json.h"
#include "levada/report/history.h"
#include "levada/report/page.h"

namespace levada::report {
namespace {

using AnyJson = nlohmann::json;
using Amounts = std::array<double, trace_kinds>;
using Memory = std::vector<std::vector<std::uint64_t>>;

constexpr std::size_t max_paths = 4, max_rows = 48, max_curves = 40, max_pipelines = 16;
constexpr std::size_t max_pipeline_bytes = std::size_t{2} << 20;
constexpr int max_groups = 64;  ///< rows and columns of the matrix

/// The kinds of time in the order in which they are stacked, from the bottom up.
constexpr std::array stacked = {
    std::pair(TraceKind::read, "read"),     std::pair(TraceKind::pack, "pack"),
    std::pair(TraceKind::memory, "memory"), std::pair(TraceKind::room, "room"),
    std::pair(TraceKind::grant, "grant"),   std::pair(TraceKind::handover, "handover"),
    std::pair(TraceKind::step, "step"),
};

double at(const Amounts& amounts, TraceKind kind) {
  return amounts[static_cast<std::size_t>(kind)];
}

double sum(const Amounts& amounts) {
  return std::accumulate(amounts.begin(), amounts.end(), 0.0);
}

/// Returns the shares of the stacked kinds, in units of 1/`whole`; all zero if nothing was recorded.
AnyJson shares(const Amounts& amounts, double whole) {
  const double all = sum(amounts);
  auto json = AnyJson::array();
  for (const auto& [kind, name] : stacked) json.push_back(all > 0 ? std::llround(whole * at(amounts, kind) / all) : 0);
  return json;
}

/// Returns a number of parts small enough that several steps fall into each, or large enough to show each step.
std::size_t parts_for(const std::vector<Trace>& traces) {
  constexpr std::ptrdiff_t finest = 240, coarsest = 96, few_steps = 60, steps_a_part = 4;
  std::ptrdiff_t steps = 0;
  for (const Trace& trace : traces) {
    steps = std::max(steps, std::ranges::count(trace.spans, TraceKind::step, &TraceSpan::kind));
  }
  return static_cast<std::size_t>(steps <= few_steps ? finest : std::clamp(steps / steps_a_part, coarsest, finest));
}

/// Returns the key by which lines are chosen if there are too many: the time that a rank waited, or that a reader
/// worked.
double weight(const TimelineRow& row) {
  if (row.thread == TraceThread::step) return sum(row.total) - at(row.total, TraceKind::step);
  return at(row.total, TraceKind::read) + at(row.total, TraceKind::pack);
}

AnyJson row_json(const TimelineRow& row) {
  auto parts = AnyJson::array();
  for (const auto& part : row.parts) parts.push_back(shares(part, 1000));
  return {
      {"rank", row.rank < 0 ? AnyJson() : AnyJson(row.rank)}, {"total", shares(row.total, 10000)}, {"shares", parts}};
}

AnyJson thread_json(const Timeline& timeline, TraceThread thread) {
  TimelineRow all{.rank = -1, .thread = thread, .parts = std::vector<Amounts>(timeline.parts)};
  std::vector<const TimelineRow*> rows;
  for (const auto& row : timeline.rows) {
    if (row.thread != thread) continue;
    rows.push_back(&row);
    const auto add = [](Amounts& to, const Amounts& more) {
      std::ranges::transform(to, more, to.begin(), std::plus());
    };
    add(all.total, row.total);
    for (std::size_t part = 0; part < timeline.parts; ++part) add(all.parts[part], row.parts[part]);
  }
  const auto ranks = rows.size();
  auto json = AnyJson::array();
  if (ranks > max_rows) {
    json.push_back(row_json(all));
    std::ranges::stable_sort(rows, std::greater(), [](const auto* row) { return weight(*row); });
    rows.resize(max_rows);
    std::ranges::sort(rows, {}, &TimelineRow::rank);
  }
  for (const auto* row : rows) json.push_back(row_json(*row));
  return {{"ranks", ranks}, {"total", shares(all.total, 1e6)}, {"rows", json}};
}

std::uint64_t peak(const std::vector<std::uint64_t>& used) {
  return used.empty() ? 0 : *std::ranges::max_element(used);
}

/// Returns the curves of the ranks with the highest peaks.
AnyJson memory_json(const Memory& memory) {
  std::vector<std::pair<std::uint64_t, std::size_t>> peaks;
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    if (const auto most = peak(memory[rank]); most > 0) peaks.emplace_back(most, rank);
  }
  const auto ranks = peaks.size();
  std::ranges::stable_sort(peaks, std::greater(), &std::pair<std::uint64_t, std::size_t>::first);
  peaks.resize(std::min(ranks, max_curves));
  auto curves = AnyJson::array();
  for (const auto& [most, rank] : peaks) curves.push_back({{"rank", rank}, {"peak", most}, {"used", memory[rank]}});
  return {{"ranks", ranks}, {"curves", curves}};
}

/// Returns the bytes that each rank sent to each other one; if there are many ranks, neighboring ones share a row or
/// column.
AnyJson edges_json(const std::vector<FeedEdge>& edges, int ranks) {
  for (const auto& edge : edges) ranks = std::max({ranks, edge.from + 1, edge.to + 1});
  const int a_group = (ranks + max_groups - 1) / max_groups;
  const auto name = [&](int group) {
    const int first = group * a_group, last = std::min(first + a_group, ranks) - 1;
    return std::to_string(first) + (first == last ? "" : "-" + std::to_string(last));
  };
  std::map<int, std::vector<std::uint64_t>> cells;
  const int groups = a_group > 0 ? (ranks + a_group - 1) / a_group : 0;
  for (const auto& edge : edges) {
    auto& row = cells[edge.from / a_group];
    row.resize(static_cast<std::size_t>(groups));
    row[static_cast<std::size_t>(edge.to / a_group)] += edge.bytes;
  }
  AnyJson json = {{"columns", AnyJson::array()}, {"rows", AnyJson::array()}};
  for (int group = 0; group < groups; ++group) json["columns"].push_back(name(group));
  for (const auto& [from, row] : cells) json["rows"].push_back({{"name", name(from)}, {"bytes", row}});
  return json;
}

AnyJson ranks_json(const FeedReport& report, const Timeline& timeline, const Memory& memory) {
  std::map<int, const TimelineRow*> rows;
  for (const auto& row : timeline.rows) {
    if (row.thread == TraceThread::step) rows.emplace(row.rank, &row);
  }
  auto json = AnyJson::array();
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const auto& rank = report.ranks[i];
    const auto row = rows.find(rank.rank);
    json.push_back({{"rank", rank.rank},
                    {"place", describe_coordinates(rank)},
                    {"batches", rank.batches},
                    {"bytes", rank.bytes},
                    {"wait_s", rank.wait_seconds},
                    {"seconds", rank.seconds},
                    {"copied", rank.copied_batches},
                    {"reader", rank.is_reader},
                    {"bytes_sent", rank.bytes_sent},
                    {"bytes_read", rank.bytes_read},
                    {"memory", i < memory.size() ? peak(memory[i]) : 0},
                    {"shares", row == rows.end() ? AnyJson::array() : shares(row->second->total, 10000)}});
  }
  return json;
}

AnyJson recording_json(const std::vector<Trace>& traces) {
  std::int64_t stride = 1;
  std::uint64_t dropped = 0, silent = 0;
  for (const auto& trace : traces) {
    stride = std::max(stride, trace.stride);
    dropped += trace.dropped;
    silent += trace.spans.empty() ? 1 : 0;
  }
  return {{"stride", stride}, {"dropped", dropped}, {"silent", silent}};
}

AnyJson header_json(const FeedReport& report, const FeedHistory& history) {
  const auto paths = std::min(history.paths.size(), max_paths);
  return {{"mesh", report.mesh},
          {"engine", report.engine_choice},
          {"readers", report.readers},
          {"paths", std::vector(history.paths.begin(), history.paths.begin() + static_cast<std::ptrdiff_t>(paths))},
          {"more_paths", history.paths.size() - paths},
          {"error", history.error},
          {"difference", find_difference(report.ranks, report.peers)},
          {"finding", find_bottleneck(report, history.traces, history.pipelines)},
          {"batch", report.batch},
          {"sequence", report.sequence},
          {"steps", report.steps},
          {"end", report.end_cause},
          {"tokens", report.tokens()},
          {"samples", report.samples},
          {"bytes_consumed", report.bytes_consumed},
          {"run",
           {{"version", report.run.version},
            {"host", report.run.host},
            {"began", report.run.began},
            {"command", fmt::format("{}", fmt::join(report.run.command, " "))},
            {"prepare_seconds", report.prepare_seconds}}}};
}

}  // namespace

std::string feed_json(const FeedReport& report, const FeedHistory& history) {
  const auto timeline = make_timeline(history.traces, parts_for(history.traces));
  const auto memory = memory_in_parts(history.traces, timeline);
  auto feed = header_json(report, history);
  feed["ranks"] = ranks_json(report, timeline, memory);
  feed["timelines"] = {{"parts", timeline.parts},
                       {"seconds", timeline.seconds()},
                       {"step", thread_json(timeline, TraceThread::step)},
                       {"reader", thread_json(timeline, TraceThread::reader)}};
  feed["memory"] = memory_json(memory);
  feed["edges"] = edges_json(history.edges, static_cast<int>(report.ranks.size()));
  feed["recording"] = recording_json(history.traces);
  if (report.balance) feed["balance_text"] = report.balance->to_text();
  auto kinds = AnyJson::array();
  for (const auto& [kind, name] : stacked) kinds.push_back({{"name", describe(kind)}, {"style", name}});
  std::string pipelines;
  std::size_t shown = 0;
  for (const auto& pipeline : history.pipelines) {
    if (shown == max_pipelines || pipelines.size() + pipeline.json.size() > max_pipeline_bytes) break;
    pipelines +=
        (shown++ == 0 ? "" : ",") + with_member(json_text(AnyJson{{"rank", pipeline.rank}}), "report", pipeline.json);
  }
  auto text = json_text(feed);
  if (report.balance) text = with_member(std::move(text), "balance", report.balance->to_json());
  auto page = json_text(AnyJson{{"kinds", kinds}, {"more_pipelines", history.pipelines.size() - shown}});
  page = with_member(std::move(page), "pipelines", "[" + pipelines + "]");
  return with_member(std::move(page), "feed", text);
}

}  // namespace levada::report
