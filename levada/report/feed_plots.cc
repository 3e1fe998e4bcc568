#include "levada/report/feed_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>

#include "levada/base/bytes.h"
#include "levada/base/json.h"
#include "levada/report/numbers.h"

namespace levada::report {
namespace {

constexpr std::size_t most_rows = 48;
constexpr double full_height = 100;
constexpr std::size_t coloured_curves = 8;

std::size_t index_of(TraceKind kind) {
  return static_cast<std::size_t>(kind);
}

double waited(const TimelineRow& row) {
  return row.covered() - row.total[index_of(TraceKind::step)];
}

/// Numbers of the rows to show, in the order of ranks: all, or those that waited most.
std::vector<std::size_t> shown_rows(const Timeline& timeline, TraceThread thread) {
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < timeline.rows.size(); ++i) {
    if (timeline.rows[i].thread == thread) shown.push_back(i);
  }
  if (shown.size() <= most_rows) return shown;
  std::stable_sort(shown.begin(), shown.end(),
                   [&](std::size_t a, std::size_t b) { return waited(timeline.rows[a]) > waited(timeline.rows[b]); });
  shown.resize(most_rows);
  std::sort(shown.begin(), shown.end());
  return shown;
}

std::string coordinates_of(const FeedReport& report, int rank) {
  const auto at = static_cast<std::size_t>(rank);
  return at < report.ranks.size() ? describe_coordinates(report.ranks[at]) : "";
}

/// The area of one kind in a stack of them; runs of equal parts are one piece.
std::string area(const TimelineRow& row, TraceKind kind) {
  std::string path;
  double last_low = -1, last_high = -1;
  std::size_t run = 0;
  const auto finish = [&](std::size_t end) {
    if (run < end && last_high - last_low > 0.05) {
      fmt::format_to(std::back_inserter(path), "M{} {:.1f}H{}V{:.1f}H{}z", run, full_height - last_low, end,
                     full_height - last_high, run);
    }
    run = end;
  };
  for (std::size_t part = 0; part < row.parts.size(); ++part) {
    const auto& kinds = row.parts[part];
    const double covered = std::accumulate(kinds.begin(), kinds.end(), 0.0);
    double low = 0;
    for (const auto below : stacked_kinds) {
      if (below == kind) break;
      low += kinds[index_of(below)];
    }
    const double scale = covered > 0 ? full_height / covered : 0;
    const double high = std::round((low + kinds[index_of(kind)]) * scale * 10) / 10;
    low = std::round(low * scale * 10) / 10;
    if (low == last_low && high == last_high) continue;
    finish(part);
    last_low = low;
    last_high = high;
  }
  finish(row.parts.size());
  return path;
}

std::string areas(const TimelineRow& row) {
  std::string paths;
  for (const auto kind : stacked_kinds) {
    const auto path = area(row, kind);
    if (!path.empty()) paths += fmt::format(R"(<path class="k-{}" d="{}"/>)", kind_class(kind), path);
  }
  return paths;
}

/// What is summed up at the end of a row: the share of time that a rank waited, or that a reader was at work.
double row_share(const TimelineRow& row) {
  const double part = row.thread == TraceThread::step
                          ? waited(row)
                          : row.total[index_of(TraceKind::read)] + row.total[index_of(TraceKind::pack)];
  const double whole = row.covered();
  return whole > 0 ? part / whole : 0;
}

std::string row_html(const FeedReport& report, const Timeline& timeline, std::size_t number, int height) {
  const TimelineRow& row = timeline.rows[number];
  const auto share = format_share(row_share(row));
  const auto* what = row.thread == TraceThread::step ? "waited" : "at work";
  return fmt::format(
      R"(<div class="timeline-row" data-rank="{0}" style="--tall:{6}px"><div class="who">rank {0}<span>{1}</span></div>)"
      R"(<div class="stage" data-at="{2}"><svg viewBox="0 0 {3} 100" preserveAspectRatio="none" role="img" )"
      R"(shape-rendering="crispEdges" aria-label="rank {0}: {4} {5} of the time">{7}</svg>)"
      R"(<i class="cursor"></i></div><div class="sum">{5}</div></div>)"
      "\n",
      row.rank, escape_html(coordinates_of(report, row.rank)), number, timeline.parts, what, share, height, areas(row));
}

/// "0 s", "50 ms": round numbers of one unit along the time.
std::string time_axis(double seconds) {
  struct Unit {
    double seconds;
    const char* name;
  };
  constexpr std::array units = {Unit{60, "min"}, Unit{1, "s"}, Unit{1e-3, "ms"}, Unit{1e-6, "us"}};
  const auto* unit = std::find_if(units.begin(), units.end() - 1,
                                  [&](const Unit& each) { return seconds >= 2 * each.seconds || seconds <= 0; });
  const double length = std::max(seconds / unit->seconds, 1e-9);
  const double power = std::pow(10, std::floor(std::log10(length / 4)));
  const double leading = length / 4 / power;
  const double step = power * (leading >= 5 ? 5 : leading >= 2 ? 2 : 1);
  std::string axis = R"(<div class="axis">)";
  for (double at = 0; at <= length * (1 + 1e-9); at += step) {
    const double place = 100 * at / length;
    axis += fmt::format(R"(<span style="left:{:.2f}%"{}>{:g} {}</span>)", place, place > 94 ? R"( class="last")" : "",
                        std::round(at / step) * step, unit->name);
  }
  return axis + "</div>\n";
}

nlohmann::json row_json(const FeedReport& report, const TimelineRow& row) {
  auto shares = nlohmann::json::array();
  for (const auto& kinds : row.parts) {
    const double covered = std::accumulate(kinds.begin(), kinds.end(), 0.0);
    auto part = nlohmann::json::array();
    for (const auto kind : stacked_kinds) {
      part.push_back(covered > 0 ? std::lround(1000 * kinds[index_of(kind)] / covered) : 0);
    }
    shares.push_back(std::move(part));
  }
  return {{"name", fmt::format("rank {} {}", row.rank, coordinates_of(report, row.rank))}, {"shares", shares}};
}

std::uint64_t peak(const std::vector<std::uint64_t>& used) {
  return used.empty() ? 0 : *std::max_element(used.begin(), used.end());
}

struct Curve {
  std::size_t rank = 0;
  std::string style;
};

/// The ranks that used memory, those that used most in colours of their own.
std::vector<Curve> curves_of(const std::vector<std::vector<std::uint64_t>>& memory) {
  std::vector<Curve> curves;
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    if (peak(memory[rank]) > 0) curves.push_back({rank, "c-other"});
  }
  std::stable_sort(curves.begin(), curves.end(),
                   [&](const Curve& a, const Curve& b) { return peak(memory[a.rank]) > peak(memory[b.rank]); });
  const auto coloured = std::min(curves.size(), coloured_curves);
  std::sort(curves.begin(), curves.begin() + static_cast<std::ptrdiff_t>(coloured),
            [](const Curve& a, const Curve& b) { return a.rank < b.rank; });
  for (std::size_t i = 0; i < coloured; ++i) curves[i].style = fmt::format("c-{}", i);
  return curves;
}

std::string curve_path(const std::vector<std::uint64_t>& used, double top) {
  std::string path;
  std::optional<double> before;
  for (std::size_t part = 0; part < used.size(); ++part) {
    const double y = std::round((full_height - full_height * static_cast<double>(used[part]) / top) * 100) / 100;
    if (before == y) continue;
    path += before ? fmt::format("H{}V{:g}", part, y) : fmt::format("M{} {:g}", part, y);
    before = y;
  }
  return path + fmt::format("H{}", used.size());
}

/// A round amount of at least `most`, that halves into round ones.
double round_top(std::uint64_t most) {
  double top = 4096;
  while (top < static_cast<double>(most)) top *= 2;
  return top * 0.75 >= static_cast<double>(most) ? top * 0.75 : top;
}

}  // namespace

std::string_view kind_class(TraceKind kind) {
  switch (kind) {
    case TraceKind::step: return "step";
    case TraceKind::handover: return "handover";
    case TraceKind::grant: return "grant";
    case TraceKind::read: return "read";
    case TraceKind::pack: return "pack";
    case TraceKind::room: return "room";
    case TraceKind::memory: return "memory";
  }
  return "handover";
}

std::size_t parts_for(const std::vector<Trace>& traces) {
  constexpr std::size_t finest = 240, coarsest = 96, few_steps = 60, steps_a_part = 4;
  std::size_t steps = 0;
  for (const Trace& trace : traces) {
    const auto own = std::count_if(trace.spans.begin(), trace.spans.end(),
                                   [](const TraceSpan& span) { return span.kind == TraceKind::step; });
    steps = std::max(steps, static_cast<std::size_t>(own));
  }
  return steps <= few_steps ? finest : std::clamp(steps / steps_a_part, coarsest, finest);
}

std::string timeline_plot(const FeedReport& report, const Timeline& timeline, TraceThread thread) {
  const auto shown = shown_rows(timeline, thread);
  if (shown.empty()) return "";
  const int height = shown.size() <= 8 ? 36 : shown.size() <= 16 ? 24 : 16;
  std::string html;
  for (const auto number : shown) html += row_html(report, timeline, number, height);
  html += R"(<div class="timeline-row times"><div class="who"></div><div>)" + time_axis(timeline.seconds()) +
          R"(</div><div class="sum"></div></div>)";
  const auto all = std::count_if(timeline.rows.begin(), timeline.rows.end(),
                                 [thread](const TimelineRow& row) { return row.thread == thread; });
  if (static_cast<std::size_t>(all) > shown.size()) {
    html += fmt::format(R"(<p class="about">{} of {} ranks: those that waited most.</p>)", shown.size(), all);
  }
  return html;
}

std::string plot_data(const FeedReport& report, const Timeline& timeline,
                      const std::vector<std::vector<std::uint64_t>>& memory) {
  nlohmann::json data = {{"parts", timeline.parts},
                         {"seconds", timeline.seconds()},
                         {"kinds", nlohmann::json::array()},
                         {"rows", nlohmann::json::array()},
                         {"memory", nlohmann::json::array()}};
  for (const auto kind : stacked_kinds)
    data["kinds"].push_back({{"name", describe(kind)}, {"style", kind_class(kind)}});
  std::vector<bool> shown(timeline.rows.size(), false);
  for (const auto thread : {TraceThread::step, TraceThread::reader}) {
    for (const auto number : shown_rows(timeline, thread)) shown[number] = true;
  }
  for (std::size_t i = 0; i < shown.size(); ++i) {
    data["rows"].push_back(shown[i] ? row_json(report, timeline.rows[i]) : nlohmann::json());
  }
  for (const auto& curve : curves_of(memory)) {
    data["memory"].push_back({{"rank", curve.rank}, {"style", curve.style}, {"used", memory[curve.rank]}});
  }
  auto text = json_text(data);
  // Inside a script element only "<" can end it.
  for (auto at = text.find('<'); at != std::string::npos; at = text.find('<', at)) text.replace(at, 1, "\\u003c");
  return text;
}

std::string memory_plot(const Timeline& timeline, const std::vector<std::vector<std::uint64_t>>& memory) {
  const auto curves = curves_of(memory);
  if (curves.empty()) return "";
  std::uint64_t most = 0;
  for (const auto& used : memory) most = std::max(most, peak(used));
  const double top = round_top(most);
  std::string keys, paths, heights, lines;
  for (const auto& curve : curves) {
    // Those in colours of their own lie on top.
    paths.insert(0, fmt::format(R"(<path class="curve {}" data-rank="{}" vector-effect="non-scaling-stroke" d="{}"/>)",
                                curve.style, curve.rank, curve_path(memory[curve.rank], top)));
    if (curve.style == "c-other") continue;
    keys += fmt::format(R"(<li><i class="swatch {}"></i>rank {} <span>at most {}</span></li>)", curve.style, curve.rank,
                        format_bytes(peak(memory[curve.rank])));
  }
  if (curves.size() > coloured_curves) {
    keys += fmt::format(R"(<li><i class="swatch c-other"></i>{} others</li>)", curves.size() - coloured_curves);
  }
  for (const int quarter : {0, 1, 2, 3, 4}) {
    const int y = 100 - 25 * quarter;
    heights += fmt::format(R"(<span style="top:{}%">{}</span>)", y,
                           format_bytes(static_cast<std::uint64_t>(top * quarter / 4)));
    lines += fmt::format(R"(<path class="grid" vector-effect="non-scaling-stroke" d="M0 {}H{}"/>)", y, timeline.parts);
  }
  return fmt::format(
      R"(<ul class="legend">{}</ul><div class="curves"><div class="heights">{}</div><div class="stage" )"
      R"(data-at="memory"><svg viewBox="0 0 {} 100" preserveAspectRatio="none" role="img" )"
      R"(aria-label="memory in use over time, at most {}">{}{}</svg><i class="cursor"></i></div>{}</div>)",
      keys, heights, timeline.parts, format_bytes(most), lines, paths, time_axis(timeline.seconds()));
}

}  // namespace levada::report
