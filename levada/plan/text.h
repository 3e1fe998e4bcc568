// Plans as text: lists of ranks, and tables. For modules that make plans.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace levada {

/// "0-7,16", "0-21/3" for every third; cut where it becomes long: "0-1,8-9,... (64 ranks)".
std::string rank_ranges(std::span<const int> ascending);

/// Rows of cells, each column as wide as its widest.
class TextTable {
 public:
  using Row = std::vector<std::string>;

  explicit TextTable(Row head) { add(std::move(head)); }
  /// As many cells as the head has.
  void add(Row row) { rows_.push_back(std::move(row)); }
  /// `right`: which columns are numbers; one entry a column.
  std::string to_string(const std::vector<bool>& right) const;

 private:
  std::vector<Row> rows_;
};

}  // namespace levada
