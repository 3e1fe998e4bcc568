#include "levada/report/feed_html.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "levada/base/bytes.h"
#include "levada/report/feed_page_assets.h"
#include "levada/report/feed_plots.h"
#include "levada/report/history.h"
#include "levada/report/numbers.h"
#include "levada/report/pipeline_html.h"

namespace levada::report {
namespace {

constexpr std::size_t shown_paths = 4;

double seconds_waited(const FeedReport& report) {
  double sum = 0;
  for (const auto& rank : report.ranks) sum += rank.wait_seconds;
  return sum;
}

double seconds_in_all(const FeedReport& report) {
  double sum = 0;
  for (const auto& rank : report.ranks) sum += rank.seconds;
  return sum;
}

double share_waited(const FeedReport& report) {
  const double all = seconds_in_all(report);
  return all > 0 ? seconds_waited(report) / all : 0;
}

const TimelineRow* row_of(const Timeline& timeline, int rank, TraceThread thread) {
  const auto found = std::find_if(timeline.rows.begin(), timeline.rows.end(),
                                  [&](const TimelineRow& row) { return row.rank == rank && row.thread == thread; });
  return found == timeline.rows.end() ? nullptr : &*found;
}

/// Seconds of each kind on all ranks' threads of steps.
std::array<double, trace_kinds> seconds_by_kind(const Timeline& timeline, TraceThread thread) {
  std::array<double, trace_kinds> sums{};
  for (const auto& row : timeline.rows) {
    for (std::size_t kind = 0; kind < trace_kinds && row.thread == thread; ++kind) sums[kind] += row.total[kind] / 1e9;
  }
  return sums;
}

std::string figure(std::string_view name, const std::string& value, std::string_view unit, const std::string& about) {
  return fmt::format("<div><dt>{}</dt><dd>{} <small>{}</small></dd><dd>{}</dd></div>\n", name, value, unit, about);
}
/// Of a value that ends with its unit, as in "1.5 GiB".
std::string figure(std::string_view name, const std::string& value, const std::string& about) {
  const auto space = value.rfind(' ');
  if (space == std::string::npos) return figure(name, value, "", about);
  return figure(name, value.substr(0, space), value.substr(space + 1), about);
}

std::string end_in_words(const FeedReport& report) {
  if (report.end_cause == "exhausted") return "the data ended";
  if (report.end_cause == "steps") return "as asked";
  if (report.end_cause == "stopped") return "a rank asked for a stop";
  if (report.end_cause == "left") return "the ranks left";
  return "then it failed";
}

/// Batches of a program's own are not counted in tokens.
bool has_tokens(const FeedReport& report) {
  return report.sequence > 0;
}

std::string figures(const FeedReport& report) {
  std::string html = "<dl class=\"figures\">\n";
  const double seconds = report.seconds();
  const auto bytes_a_second = format_bytes(static_cast<std::uint64_t>(
                                  seconds > 0 ? static_cast<double>(report.bytes_delivered()) / seconds : 0)) +
                              "/s delivered";
  html += has_tokens(report)
              ? figure("Speed", in_thousands(report.tokens_per_second()), "tokens/s", bytes_a_second)
              : figure("Speed", in_thousands(seconds > 0 ? static_cast<double>(report.steps) / seconds : 0), "steps/s",
                       bytes_a_second);
  html += figure("Time", format_seconds(report.seconds()), "of the slowest rank");
  html += figure("Steps", with_commas(report.steps), end_in_words(report));
  if (has_tokens(report)) {
    html += figure("Data", in_thousands(static_cast<double>(report.tokens())), "tokens",
                   fmt::format("in {}", counted(report.samples, "sample")));
  }
  html +=
      figure("Delivered", format_bytes(report.bytes_delivered()), "to " + counted(std::ssize(report.ranks), "rank"));
  if (report.bytes_consumed > 0) {
    html += figure("Read", format_bytes(report.bytes_read()),
                   fmt::format("{:.2f} times the data", report.read_amplification()));
  }
  if (report.balance) {
    html += figure("Busiest rank", fmt::format("{:.3f}", report.balance->busiest()), "x",
                   fmt::format("the least work, {:.3f} x unbalanced", report.balance->unbalanced()));
  }
  html += figure("Waited", format_share(share_waited(report)),
                 "of the ranks' time, " + format_seconds(seconds_waited(report)) + " in all");
  return html + "</dl>\n";
}

std::string header(const FeedReport& report, const FeedHistory& history) {
  const auto step = !has_tokens(report)
                        ? std::string()
                        : fmt::format(" &middot; {} &times; {} tokens a step to each data-parallel rank",
                                      with_commas(report.batch), with_commas(report.sequence));
  auto html = fmt::format(
      "<p class=\"eyebrow\">levada feed</p>\n<h1>{}</h1>\n<p class=\"facts\">{}{} &middot; readers: {} &middot; "
      "engine: "
      "{}</p>\n",
      escape_html(report.mesh.empty() ? "one rank" : report.mesh), counted(std::ssize(report.ranks), "rank"), step,
      escape_html(report.readers), escape_html(report.engine_choice));
  if (!history.paths.empty()) {
    html += "<p class=\"facts\">";
    for (std::size_t i = 0; i < std::min(history.paths.size(), shown_paths); ++i) {
      html += fmt::format("{}<bdi><code>{}</code></bdi>", i > 0 ? ", " : "", escape_html(history.paths[i]));
    }
    if (history.paths.size() > shown_paths) html += fmt::format(" and {} more", history.paths.size() - shown_paths);
    html += "</p>\n";
  }
  if (!history.error.empty()) {
    html +=
        fmt::format("<p class=\"alert\" role=\"alert\"><b>The feed failed.</b> {}</p>\n", escape_html(history.error));
  }
  const auto difference = find_difference(report.ranks, report.peers);
  if (!difference.empty() && history.error.empty()) {
    html += fmt::format("<p class=\"alert\" role=\"alert\">{}</p>\n", escape_html(difference));
  }
  return html;
}

std::string legend(const Timeline& timeline, TraceThread thread) {
  const auto seconds = seconds_by_kind(timeline, thread);
  double all = 0;
  for (const double each : seconds) all += each;
  std::string html = "<ul class=\"legend\">";
  for (const auto kind : stacked_kinds) {
    const double of_kind = seconds[static_cast<std::size_t>(kind)];
    if (of_kind <= 0) continue;
    const bool waits = thread == TraceThread::step && kind != TraceKind::step;
    html += fmt::format(R"(<li data-kind="{0}"><i class="swatch k-{0}"></i>{1}{2} <span>{3}</span></li>)",
                        kind_class(kind), waits ? "waited: " : "", describe(kind), format_share(of_kind / all));
  }
  return html + "</ul>\n";
}

std::string section(std::string_view id, std::string_view title, std::string_view about, const std::string& body) {
  if (body.empty()) return "";
  return fmt::format("<section class=\"card plot\" id=\"{}\"><h2>{}</h2><p class=\"about\">{}</p>\n{}</section>\n", id,
                     title, about, body);
}

std::string timeline_section(const FeedReport& report, const Timeline& timeline, TraceThread thread) {
  const auto plot = timeline_plot(report, timeline, thread);
  if (plot.empty()) return "";
  const auto body = legend(timeline, thread) + plot;
  if (thread == TraceThread::step) {
    return section(
        "waits", "Where each rank's time went",
        "Time goes from left to right. Colour is time in which a rank waited for its next batch, and shows what "
        "the reader it was for did meanwhile; the pale rest is the rank's own step. At the end: the share it waited.",
        body);
  }
  return section(
      "readers", "What the readers did",
      "Each reader's thread over the same time. A reader that mostly waits for a slower rank has time to spare; "
      "one that reads or packs all the time sets the pace. At the end: the share in which it read and packed.",
      body);
}

std::string wait_bar(const TimelineRow* row) {
  if (row == nullptr || row->covered() <= 0) return "";
  std::string html = "<div class=\"bar\">";
  for (const auto kind : stacked_kinds) {
    const double share = row->total[static_cast<std::size_t>(kind)] / row->covered();
    if (share <= 0) continue;
    html += fmt::format(R"(<i class="k-{}" style="width:{:.2f}%" title="{} {}"></i>)", kind_class(kind), 100 * share,
                        describe(kind), format_share(share));
  }
  return html + "</div>";
}

std::string rank_row(const RankReport& rank, const TimelineRow* row, std::uint64_t memory) {
  return fmt::format(
      R"(<tr data-rank="{0}"><th scope="row">rank {0}{1}</th><td>{2}</td><td class="n">{3}</td><td class="n">{4}</td>)"
      R"(<td class="n">{5}</td><td class="n">{6}</td><td>{7}</td><td class="n">{8}</td><td class="n">{9}</td>)"
      R"(<td class="n">{10}</td></tr>)"
      "\n",
      rank.rank, rank.is_reader ? R"(<span class="tag">reads</span>)" : "", escape_html(describe_coordinates(rank)),
      with_commas(rank.batches), format_bytes(rank.bytes), format_seconds(rank.wait_seconds),
      format_share(rank.seconds > 0 ? rank.wait_seconds / rank.seconds : 0), wait_bar(row),
      rank.copied_batches > 0 ? with_commas(rank.copied_batches) : "-",
      rank.is_reader ? format_bytes(rank.bytes_read) : "-", memory > 0 ? format_bytes(memory) : "-");
}

std::string rank_table(const FeedReport& report, const Timeline& timeline,
                       const std::vector<std::vector<std::uint64_t>>& memory) {
  if (report.ranks.empty()) return "";
  std::string html =
      "<div class=\"scroll\"><table class=\"ranks\"><thead><tr><th scope=\"col\">rank</th><th scope=\"col\">place</th>"
      "<th scope=\"col\" class=\"n\">batches</th><th scope=\"col\" class=\"n\">given</th>"
      "<th scope=\"col\" class=\"n\">waited</th><th scope=\"col\" class=\"n\">of its time</th>"
      "<th scope=\"col\">its time</th><th scope=\"col\" class=\"n\">as copies</th>"
      "<th scope=\"col\" class=\"n\">read</th><th scope=\"col\" class=\"n\">memory at most</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const bool known = i < memory.size() && !memory[i].empty();
    html += rank_row(report.ranks[i], row_of(timeline, report.ranks[i].rank, TraceThread::step),
                     known ? *std::max_element(memory[i].begin(), memory[i].end()) : 0);
  }
  return html + "</tbody></table></div>\n";
}

std::string footer(const FeedHistory& history) {
  std::string text = "Written by levada feed --report.";
  std::int64_t stride = 1;
  std::uint64_t dropped = 0;
  for (const auto& trace : history.traces) {
    stride = std::max(stride, trace.stride);
    dropped += trace.dropped;
  }
  if (dropped > 0) {
    text += fmt::format(" To bound memory, the plots show one step of {} ({} left out); the table counts all.",
                        with_commas(stride), counted(static_cast<std::int64_t>(dropped), "event"));
  }
  const auto silent = std::count_if(history.traces.begin(), history.traces.end(),
                                    [](const Trace& trace) { return trace.spans.empty(); });
  if (silent > 0) text += fmt::format(" Of {} nothing was recorded, or it was lost.", counted(silent, "rank"));
  return fmt::format("<footer>{}</footer>\n", escape_html(text));
}

/// The rank that most waits of one kind were for; -1 where no rank stands out.
int most_waited_for(const std::vector<Trace>& traces, TraceKind kind) {
  std::map<int, std::int64_t> waits;
  std::int64_t all = 0;
  for (const auto& trace : traces) {
    for (const auto& span : trace.spans) {
      if (span.thread != TraceThread::step || span.kind != kind) continue;
      waits[span.other] += span.duration_ns;
      all += span.duration_ns;
    }
  }
  const auto one = std::find_if(waits.begin(), waits.end(), [all](const auto& each) { return each.second > all / 2; });
  return one == waits.end() ? -1 : one->first;
}

/// What the rank read from; null where that is no pipeline. With rank -1, where nobody stands out, the only one.
const PipelineReport* pipeline_of(const std::vector<PipelineReport>& pipelines, int rank) {
  if (rank < 0 && pipelines.size() == 1) return &pipelines.front();
  const auto found =
      std::find_if(pipelines.begin(), pipelines.end(), [rank](const auto& pipeline) { return pipeline.rank == rank; });
  return found == pipelines.end() ? nullptr : &*found;
}

/// Of time spent reading: what in the pipeline it went to.
std::string advice(const PipelineReport& pipeline) {
  const auto reader = fmt::format("rank {} was waiting for its pipeline", pipeline.rank);
  if (pipeline.holds_back) return fmt::format("{}, in which {}", reader, find_bottleneck(pipeline));
  return fmt::format("{}, whose busiest process works only {} of the time: items wait to be carried or collated",
                     reader, format_share(pipeline.load));
}

/// While what, and what may help.
std::string advice(TraceKind kind, int other) {
  const auto reader = other < 0 ? std::string("a reader") : fmt::format("rank {}", other);
  switch (kind) {
    case TraceKind::read: return reader + " was reading storage: faster storage or more readers would help";
    case TraceKind::pack: return reader + " was packing messages: more readers would share that work";
    case TraceKind::room:
      return (other < 0 ? std::string("some rank") : reader) +
             " had not received what it was sent: the slowest rank sets the pace, and data does not";
    case TraceKind::memory:
      return reader + " waited for memory: batches are held for long, or there is little (levada doctor shows limits)";
    case TraceKind::grant:
      return "the word that all readers were ready was under way: steps are so short that this shows";
    case TraceKind::handover:
    case TraceKind::step: break;
  }
  return "a batch was handed over: steps are so short that this shows";
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string escaped;
  for (const char each : text) {
    switch (each) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: escaped += each;
    }
  }
  return escaped;
}

std::string find_bottleneck(const FeedReport& report, const std::vector<Trace>& traces,
                            const std::vector<PipelineReport>& pipelines) {
  constexpr double hardly = 0.02;
  const auto seconds = seconds_by_kind(make_timeline(traces, 1), TraceThread::step);
  double waits = 0;
  TraceKind worst = TraceKind::handover;
  for (const auto kind : stacked_kinds) {
    if (kind == TraceKind::step) continue;
    const double of_kind = seconds[static_cast<std::size_t>(kind)];
    waits += of_kind;
    if (of_kind > seconds[static_cast<std::size_t>(worst)]) worst = kind;
  }
  const double share = share_waited(report);
  if (waits <= 0 && seconds[static_cast<std::size_t>(TraceKind::step)] <= 0) return "";
  if (share < hardly || waits <= 0) {
    return fmt::format("Batches were there when they were asked for: ranks waited only {} of the time.",
                       format_share(share));
  }
  const int other = most_waited_for(traces, worst);
  const auto* pipeline = worst == TraceKind::read ? pipeline_of(pipelines, other) : nullptr;
  auto sentence = fmt::format("Ranks waited {} of the time, {} of that while {}", format_share(share),
                              format_share(seconds[static_cast<std::size_t>(worst)] / waits),
                              pipeline != nullptr ? advice(*pipeline) : advice(worst, other));
  if (!sentence.ends_with('.')) sentence += '.';
  return sentence;
}

std::string feed_page(const FeedReport& report, const FeedHistory& history) {
  const auto timeline = make_timeline(history.traces, parts_for(history.traces));
  const auto memory = memory_in_parts(history.traces, timeline);
  const auto finding = find_bottleneck(report, history.traces, history.pipelines);
  auto html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>levada feed {}</title>\n<style>",
      escape_html(report.mesh.empty() ? "one rank" : report.mesh));
  html += feed_page_style;
  html += "</style>\n</head>\n<body>\n<main>\n" + header(report, history) + figures(report);
  if (!finding.empty()) {
    html += fmt::format("<section class=\"card finding\"><p>{}</p></section>\n", escape_html(finding));
  }
  html += timeline_section(report, timeline, TraceThread::step);
  html += timeline_section(report, timeline, TraceThread::reader);
  for (const auto& pipeline : history.pipelines) html += pipeline_section(pipeline);
  if (report.balance) {
    html +=
        section("work", "How the work of steps was divided",
                "Work of the busiest data-parallel rank over the steps, by the least that it could have been: what a "
                "step takes beyond 1x, other ranks wait. " +
                    escape_html(to_string(report.balance->by)) + ".",
                balance_plot(*report.balance));
  }
  html +=
      section("memory", "Memory in use",
              "What each reader holds in batches: those being made, those under way and those that ranks still keep.",
              memory_plot(timeline, memory));
  html +=
      section("edges", "Who was sent how much by whom",
              "Bytes over the whole feed, counted at each rank that they reached. Ranks that need the same share one "
              "message in shared memory; a dashed cell is what a reader gave itself.",
              edge_matrix(report, history.edges));
  html += section("ranks", "Ranks", "What each rank was given, and how long it waited for it.",
                  rank_table(report, timeline, memory));
  html += footer(history) +
          "</main>\n<div id=\"tip\" role=\"status\"></div>\n<script type=\"application/json\" id=\"data\">";
  html += plot_data(report, timeline, memory);
  html += "</script>\n<script>";
  html += feed_page_script;
  return html + "</script>\n</body>\n</html>\n";
}

}  // namespace levada::report
