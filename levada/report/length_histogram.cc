#include "levada/report/length_histogram.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "levada/report/numbers.h"

namespace levada::report {
namespace {

// Each length below 32 has its own bucket; above that, each doubling is divided into 32 buckets.
constexpr int divisions_log = 5;
constexpr std::int64_t divisions = std::int64_t{1} << divisions_log;
constexpr int octaves = 63;
constexpr std::size_t buckets = static_cast<std::size_t>((octaves - divisions_log + 1) * divisions);

std::size_t bucket_of(std::int64_t length) {
  const auto value = static_cast<std::uint64_t>(length);
  if (length < divisions) return value;
  const auto shift = static_cast<int>(std::bit_width(value)) - 1 - divisions_log;
  return static_cast<std::size_t>(shift) * divisions + (value >> shift);
}

/// Returns the shortest length in a bucket.
std::int64_t begin_of(std::size_t bucket) {
  if (bucket < 2 * divisions) return static_cast<std::int64_t>(bucket);
  const auto shift = bucket / divisions - 1;
  return static_cast<std::int64_t>((bucket - shift * divisions) << shift);
}

/// Returns the first length of each row if each doubling is divided into `parts`, or `doublings` doublings form one
/// row.
std::vector<std::int64_t> row_begins(std::int64_t parts, int doublings) {
  std::vector<std::int64_t> begins = {0};
  for (int octave = 0; octave < octaves; octave += doublings) {
    const auto begin = std::int64_t{1} << octave;
    for (std::int64_t part = 0; part < parts; ++part) {
      const auto at = begin + begin / parts * part + begin % parts * part / parts;
      if (at > begins.back()) begins.push_back(at);
    }
  }
  return begins;
}

/// Returns the sum, or the maximum if it would overflow.
std::int64_t sum(std::int64_t one, std::int64_t other) {
  constexpr auto max = std::numeric_limits<std::int64_t>::max();
  return one > max - other ? max : one + other;
}

}  // namespace

LengthHistogram::LengthHistogram() : counts_(buckets), totals_(buckets) {}

void LengthHistogram::add(std::int64_t length) {
  const auto bucket = bucket_of(length);
  ++counts_[bucket];
  totals_[bucket] = sum(totals_[bucket], length);
  shortest_ = count_ == 0 ? length : std::min(shortest_, length);
  longest_ = std::max(longest_, length);
  ++count_;
  total_ = sum(total_, length);
}

std::int64_t LengthHistogram::quantile(double share) const {
  auto wanted = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(count_)));
  std::size_t bucket = 0;
  for (; bucket + 1 < buckets; ++bucket) {
    wanted -= counts_[bucket];
    if (wanted <= 0) break;
  }
  return std::clamp(begin_of(bucket), shortest(), longest());
}

std::vector<LengthHistogram::Row> LengthHistogram::rows(std::size_t max_rows) const {
  if (count_ == 0) return {};
  std::vector<Row> rows;
  for (const auto& [parts, doublings] : {std::pair{8, 1}, {4, 1}, {2, 1}, {1, 1}, {1, 2}, {1, 4}, {1, 8}, {1, 64}}) {
    const auto begins = row_begins(parts, doublings);
    rows.clear();
    for (std::size_t i = 0; i < begins.size(); ++i) {
      const auto end = i + 1 < begins.size() ? begins[i + 1] - 1 : longest_;
      if (end >= shortest_ && begins[i] <= longest_) rows.push_back({begins[i], end, 0, 0});
    }
    if (rows.size() <= max_rows) break;
  }
  rows.front().from = std::max(rows.front().from, shortest_);
  rows.back().to = std::min(rows.back().to, longest_);
  for (std::size_t bucket = 0, row = 0; bucket < buckets; ++bucket) {
    if (counts_[bucket] == 0) continue;
    while (row + 1 < rows.size() && begin_of(bucket) >= rows[row + 1].from) ++row;
    rows[row].count += counts_[bucket];
    rows[row].total = sum(rows[row].total, totals_[bucket]);
  }
  return rows;
}

std::string LengthHistogram::to_string(const std::string& things, const Style& style, const std::string& indent) const {
  constexpr std::size_t max_rows = 18, bar_columns = 32;
  TextTable table({"length", things, "of tokens", ""});
  const auto lines = rows(max_rows);
  const auto highest = std::ranges::max(lines, {}, &Row::count).count;
  const auto share = [](std::int64_t part, std::int64_t all) {
    return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
  };
  for (const auto& row : lines) {
    table.add({row.from == row.to ? with_commas(row.from)
                                  : fmt::format("{} – {}", with_commas(row.from), with_commas(row.to)),
               with_commas(row.count), fmt::format("{:.1f}%", 100 * share(row.total, total_)),
               bar_of(share(row.count, highest), bar_columns)});
  }
  return report::to_string(table, {true, true, true}, style, indent);
}

}  // namespace levada::report
