// Plans as text: lists of ranks, and tables. For modules that make plans.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace levada {

/// "0-7,16", "0-21/3" for every third; cut where it becomes long: "0-1,8-9,... (64 ranks)".
std::string rank_ranges(std::span<const int> ascending);

/// Rows of cells, each column as wide as its widest cell, two spaces apart. A value.
class TextTable {
 public:
  using Row = std::vector<std::string>;

  explicit TextTable(Row head) { rows_.push_back(std::move(head)); }
  /// Cells beyond the columns are dropped, missing ones are empty.
  void add(Row row);
  /// The head and each row, without trailing spaces. `right`: which columns are numbers; those beyond it are not.
  std::vector<std::string> lines(const std::vector<bool>& right) const;
  /// The lines, with a rule under the head.
  std::string to_string(const std::vector<bool>& right) const;

 private:
  std::vector<Row> rows_;
};

}  // namespace levada
