#include "levada/report/table.h"

#include <algorithm>

namespace levada::report {
namespace {

/// Characters, not bytes, of UTF-8.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
}

std::string line_of(const std::vector<std::string>& cells, const std::vector<Table::Column>& columns,
                    const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const std::string padding(widths[i] - width_of(cells[i]), ' ');
    if (i != 0) line += "  ";
    line += columns[i].align == Table::Align::right ? padding + cells[i] : cells[i] + padding;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

void Table::add_row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::to_string(const Style& style, const std::string& indent) const {
  std::vector<std::string> names;
  std::vector<std::size_t> widths;
  for (const auto& column : columns_) {
    names.push_back(column.name);
    widths.push_back(width_of(column.name));
  }
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text = indent + style.bold(line_of(names, columns_, widths)) + "\n";
  for (const auto& row : rows_) text += indent + line_of(row, columns_, widths) + "\n";
  return text;
}

}  // namespace levada::report
