#include "levada/plan/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace levada {
namespace {

/// How many numbers from `first` on have the same distance to the next.
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

std::string TextTable::to_string(const std::vector<bool>& right) const {
  std::vector<std::size_t> widths(right.size(), 0);
  for (const Row& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::size_t width = 2 * (widths.size() - 1);
  for (const std::size_t column : widths) width += column;
  std::string text;
  for (const Row& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const char* separator = i == 0 ? "" : "  ";
      line += right[i] ? fmt::format("{}{:>{}}", separator, row[i], widths[i])
                       : fmt::format("{}{:<{}}", separator, row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (&row == rows_.data()) text += std::string(width, '-') + "\n";
  }
  return text;
}

}  // namespace levada
