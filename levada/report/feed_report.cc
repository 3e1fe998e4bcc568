#include "levada/report/feed_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "levada/base/bytes.h"
#include "levada/base/text.h"
#include "levada/report/numbers.h"

namespace levada::report {
namespace {

constexpr std::size_t shown_digest = 8;

const FieldReport* find_field(const RankReport& rank, const std::string& name) {
  const auto found = std::find_if(rank.field_reports.begin(), rank.field_reports.end(),
                                  [&](const FieldReport& field) { return field.name == name; });
  return found == rank.field_reports.end() ? nullptr : &*found;
}

/// Returns the names of all fields, in the order of their first appearance over the ranks.
std::vector<std::string> field_names(const std::vector<RankReport>& ranks) {
  std::vector<std::string> names;
  for (const auto& rank : ranks) {
    for (const auto& field : rank.field_reports) {
      if (std::find(names.begin(), names.end(), field.name) == names.end()) names.push_back(field.name);
    }
  }
  return names;
}

std::string rank_table(const std::vector<RankReport>& ranks, const Style& style) {
  TextTable::Row head = {"rank", "coords", "batches", "bytes", "wait"};
  const auto names = field_names(ranks);
  for (const auto& name : names) head.push_back(printable(name));
  TextTable table(std::move(head));
  for (const auto& rank : ranks) {
    std::vector<std::string> row = {fmt::format("{}", rank.rank), describe_coordinates(rank), with_commas(rank.batches),
                                    format_bytes(rank.bytes), format_seconds(rank.wait_seconds)};
    for (const auto& name : names) {
      const auto* field = find_field(rank, name);
      row.push_back(field ? field->digest.substr(0, shown_digest) : "-");
    }
    table.add(std::move(row));
  }
  return report::to_string(table, {true, false, true, true, true}, style, "  ");
}

/// Returns for example "4 files are not read: 3 .md, 1 without an extension".
std::string left_out_sentence(const std::map<std::string, std::int64_t>& left_out) {
  std::int64_t files = 0;
  std::vector<std::string> ends;
  for (const auto& [end, count] : left_out) {
    files += count;
    ends.push_back(fmt::format("{} {}", with_commas(count), end.empty() ? "without an extension" : printable(end)));
  }
  return fmt::format("{} {} not read: {}", counted(files, "file"), files == 1 ? "is" : "are", fmt::join(ends, ", "));
}

std::string data_sentence(const FeedReport& report) {
  auto text = fmt::format("{} in {}", counted(report.tokens(), "token"), counted(report.samples, "sample"));
  if (!report.balance) text += " of " + with_commas(report.sequence);
  if (const auto padding = report.padding_share(); padding > 0) text += fmt::format(", {:.2f}% padding", 100 * padding);
  text += "; ";
  const auto steps = counted(report.steps, "step");
  if (report.end_cause == "exhausted" && report.steps == 0)
    text += "finished: --load-state or --skip begins at the end of the data";
  else if (report.end_cause == "exhausted") text += "the data ended after " + steps;
  else if (report.end_cause == "stopped" || report.end_cause == "left") text += "stopped after " + steps;
  else text += fmt::format("{}, as asked", steps);
  if (report.documents < report.stored_documents) {
    text += fmt::format("; {} of {}", with_commas(report.documents), counted(report.stored_documents, "document"));
  }
  if (!report.left_out.empty()) text += "; " + left_out_sentence(report.left_out);
  if (report.skipped_lines > 0) text += "; skipped " + bad_lines_sentence(report.skipped_lines, report.skipped_places);
  return text;
}

std::string read_sentence(const FeedReport& report) {
  const auto readers =
      std::count_if(report.ranks.begin(), report.ranks.end(), [](const RankReport& rank) { return rank.is_reader; });
  auto text =
      fmt::format("{} read {} for {} of data: read amplification {:.2f}", counted(readers, "rank"),
                  format_bytes(report.bytes_read()), format_bytes(report.bytes_consumed), report.read_amplification());
  if (report.prepare_bytes > 0)
    text += fmt::format(" (and {} in {} once, before the first sample)", format_bytes(report.prepare_bytes),
                        format_seconds(report.prepare_seconds));
  return text;
}

std::string peer_sentence(const FeedReport& report, const Style& style) {
  const auto difference = find_difference(report.ranks, report.peers);
  if (!difference.empty()) return style.bad(difference);
  if (report.peers.empty()) return "no two ranks receive the same part of a field, so no digests are compared";
  const bool tensor_parallel = report.mesh.find("tp=") != std::string::npos;
  return fmt::format("{} (digests of {} compared)",
                     style.good(tensor_parallel ? "tensor-parallel peers received identical bits"
                                                : "ranks that share their data received identical bits"),
                     counted(static_cast<std::int64_t>(report.peers.size()), "group"));
}

/// Describes the contributions of several sources.
std::string mix_sentence(const FeedReport& report) {
  std::string text;
  for (const auto& source : report.sources) {
    text += fmt::format("{}{:.1f}% {} ({})", text.empty() ? "" : ", ", 100 * source.share, printable(source.name),
                        counted(source.samples, "sample"));
  }
  return text;
}

std::string next_sentence(const FeedReport& report) {
  if (report.readers == "all") return "--readers one yields the same digests and reads every byte once";
  return fmt::format(
      "--readers all shows the cost of reading on every rank; levada plan --mesh {} --batch {} "
      "--seq {} shows what moves",
      report.mesh.empty() ? "dp=1" : report.mesh, report.batch, report.sequence);
}

}  // namespace

std::string describe_coordinates(const RankReport& rank) {
  std::string text;
  for (const auto& [axis, at] : rank.coordinates) text += fmt::format("{}{}{}", text.empty() ? "" : " ", axis, at);
  return text.empty() ? "-" : text;
}

std::string find_difference(const std::vector<RankReport>& ranks, const std::vector<PeerGroup>& peers) {
  for (const auto& group : peers) {
    const int first = group.ranks.front();
    const auto* expected = find_field(ranks.at(static_cast<std::size_t>(first)), group.field);
    for (const int rank : group.ranks) {
      const auto* found = find_field(ranks.at(static_cast<std::size_t>(rank)), group.field);
      const bool equal = expected != nullptr && found != nullptr ? *expected == *found : expected == found;
      if (equal) continue;
      return fmt::format("ranks {} and {} should hold the same {}, but theirs differ", first, rank,
                         printable(group.field));
    }
  }
  return "";
}

std::uint64_t FeedReport::bytes_read() const {
  return std::accumulate(ranks.begin(), ranks.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const RankReport& rank) { return sum + rank.bytes_read; });
}

std::uint64_t FeedReport::bytes_delivered() const {
  return std::accumulate(ranks.begin(), ranks.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const RankReport& rank) { return sum + rank.bytes; });
}

std::uint64_t FeedReport::bytes_sent() const {
  return std::accumulate(ranks.begin(), ranks.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const RankReport& rank) { return sum + rank.bytes_sent; });
}

double FeedReport::read_amplification() const {
  return bytes_consumed == 0 ? 0 : static_cast<double>(bytes_read()) / static_cast<double>(bytes_consumed);
}

double FeedReport::padding_share() const {
  if (tokens() == 0 || sources.empty()) return 0;
  if (balance) return static_cast<double>(balance->series.total().padding) / static_cast<double>(tokens());
  const auto used = std::accumulate(sources.begin(), sources.end(), std::int64_t{0},
                                    [](std::int64_t sum, const SourceReport& source) { return sum + source.tokens; });
  return 1 - static_cast<double>(used) / static_cast<double>(tokens());
}

double FeedReport::seconds() const {
  double longest = 0;
  for (const auto& rank : ranks) longest = std::max(longest, rank.seconds);
  return longest;
}

double FeedReport::tokens_per_second() const {
  const double time = seconds();
  return time > 0 ? static_cast<double>(tokens()) / time : 0;
}

double FeedReport::waited_share() const {
  double waited = 0, all = 0;
  for (const auto& rank : ranks) {
    waited += rank.wait_seconds;
    all += rank.seconds;
  }
  return all > 0 ? waited / all : 0;
}

std::string FeedReport::to_text(const Style& style) const {
  const auto title = fmt::format("{}: {} x {} tokens per step to each data-parallel rank, over {}",
                                 mesh.empty() ? "one rank" : mesh, batch, with_commas(sequence), engine_choice);
  auto text = style.bold(title) + "\n\n" + rank_table(ranks, style) + "\n";
  const auto add = [&](std::string_view name, const std::string& value) { text += fact(style, name, 5, value); };
  add("data", data_sentence(*this));
  if (sources.size() > 1) add("mix", mix_sentence(*this));
  if (balance) add("work", balance->to_text());
  add("speed", fmt::format("{} tokens/s, {} in all", in_thousands(tokens_per_second()), format_seconds(seconds())));
  add("read", read_sentence(*this));
  add("sent", fmt::format("{} in messages; together the ranks received {}", format_bytes(bytes_sent()),
                          format_bytes(bytes_delivered())));
  add("proof", peer_sentence(*this, style));
  if (!state_file.empty()) add("state", fmt::format("saved; --load-state {} resumes there", state_file));
  add("next", next_sentence(*this));
  return text;
}

}  // namespace levada::report
