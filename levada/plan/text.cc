#include "levada/plan/text.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/text.h"

namespace levada {
namespace {

/// Returns the length of the run from `first` on whose numbers are equally spaced.
std::size_t run_length(std::span<const int> ascending, std::size_t first) {
  std::size_t last = first + 1;
  while (last + 1 < ascending.size() &&
         ascending[last + 1] - ascending[last] == ascending[first + 1] - ascending[first]) {
    ++last;
  }
  return std::min(last + 1, ascending.size()) - first;
}

}  // namespace

std::string rank_ranges(std::span<const int> ascending) {
  constexpr std::size_t long_text = 32;
  std::string text;
  for (std::size_t i = 0; i < ascending.size();) {
    if (text.size() >= long_text) return fmt::format("{},... ({} ranks)", text, ascending.size());
    const std::size_t length = run_length(ascending, i);
    const int step = length > 1 ? ascending[i + 1] - ascending[i] : 1;
    const bool is_run = length >= (step == 1 ? 3 : 4);
    text += fmt::format("{}{}", text.empty() ? "" : ",", ascending[i]);
    if (is_run) text += fmt::format("-{}", ascending[i + length - 1]);
    if (is_run && step > 1) text += fmt::format("/{}", step);
    i += is_run ? length : 1;
  }
  return text;
}

void TextTable::add(Row row) {
  row.resize(rows_.front().size());
  rows_.push_back(std::move(row));
}

std::vector<std::string> TextTable::lines(const std::vector<bool>& right) const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const Row& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], count_characters(row[i]));
  }
  std::vector<std::string> lines;
  for (const Row& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - count_characters(row[i]), ' ');
      if (i != 0) line += "  ";
      line += i < right.size() && right[i] ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string TextTable::to_string(const std::vector<bool>& right) const {
  const auto all = lines(right);
  std::size_t width = 0;
  for (const std::string& line : all) width = std::max(width, count_characters(line));
  std::string text;
  for (const std::string& line : all) {
    text += line + "\n";
    if (&line == all.data()) text += std::string(width, '-') + "\n";
  }
  return text;
}

}  // namespace levada
