#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "levada/base/bytes.h"
#include "levada/report/feed_plots.h"

namespace levada::report {
namespace {

constexpr int most_columns = 64, most_rows = 64;
constexpr int most_columns_with_text = 12;

/// Consecutive ranks that share a column or row.
struct Groups {
  int ranks = 1;  ///< in all
  int a_group = 1;

  Groups(int ranks_in_all, int most) : ranks(std::max(ranks_in_all, 1)), a_group((ranks + most - 1) / most) {}
  int count() const { return (ranks + a_group - 1) / a_group; }
  int of(int rank) const { return rank / a_group; }
  std::string name(int group) const {
    const int first = group * a_group, last = std::min(first + a_group, ranks) - 1;
    return first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
  }
};

std::string cell(std::uint64_t bytes, std::uint64_t most, bool own, bool with_text, const std::string& title) {
  const double share = most > 0 ? static_cast<double>(bytes) / static_cast<double>(most) : 0;
  const auto text = bytes == 0 ? std::string("-") : format_bytes(bytes);
  return fmt::format(
      R"html(<td class="{}{}" style="background:color-mix(in srgb, var(--accent) {:.0f}%, var(--page))" )html"
      R"(data-bytes="{}" title="{}">{}</td>)",
      share > 0.5 ? "strong" : "", own ? " own" : "", 100 * share, bytes, title, with_text ? text : "");
}

std::string place_of(const FeedReport& report, int rank) {
  const auto at = static_cast<std::size_t>(rank);
  if (at >= report.ranks.size()) return "";
  return fmt::format("<span>{}</span>", escape_html(describe_coordinates(report.ranks[at])));
}

}  // namespace

std::string edge_matrix(const FeedReport& report, const std::vector<FeedEdge>& edges) {
  if (edges.empty()) return "";
  int ranks = static_cast<int>(report.ranks.size());
  for (const auto& edge : edges) ranks = std::max({ranks, edge.from + 1, edge.to + 1});
  const Groups columns(ranks, most_columns), rows(ranks, most_rows);
  std::map<int, std::map<int, std::uint64_t>> cells;
  std::uint64_t most = 0;
  for (const auto& edge : edges) {
    auto& bytes = cells[rows.of(edge.from)][columns.of(edge.to)];
    bytes += edge.bytes;
    most = std::max(most, bytes);
  }
  const bool with_text = columns.count() <= most_columns_with_text;
  auto html = fmt::format(R"(<div class="scroll"><table class="matrix{}"><thead><tr><th scope="col">from \ to</th>)",
                          with_text ? "" : " dense");
  for (int to = 0; to < columns.count(); ++to) {
    html += with_text ? fmt::format(R"(<th scope="col">rank {}{}</th>)", to, place_of(report, to))
                      : fmt::format(R"(<th scope="col">{}</th>)", columns.name(to));
  }
  html += "</tr></thead><tbody>\n";
  for (const auto& [from, row] : cells) {
    html +=
        fmt::format(R"(<tr><th scope="row">rank {}{}</th>)", rows.name(from), with_text ? place_of(report, from) : "");
    for (int to = 0; to < columns.count(); ++to) {
      const auto found = row.find(to);
      const auto bytes = found == row.end() ? 0 : found->second;
      html += cell(bytes, most, from == to && bytes > 0, with_text,
                   fmt::format("from rank {} to rank {}: {}", rows.name(from), columns.name(to), format_bytes(bytes)));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace levada::report
