// Plans as text: lists of ranks, and tables. For modules that make plans.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace levada {

/// Returns ranges: "0-7,16", or "0-21/3" for every third rank; truncated if long: "0-1,8-9,... (64 ranks)".
std::string rank_ranges(std::span<const int> ascending);

/// Rows of cells, each column as wide as its widest cell, two spaces apart. A value type.
class TextTable {
 public:
  using Row = std::vector<std::string>;

  explicit TextTable(Row head) { rows_.push_back(std::move(head)); }
  /// Drops cells beyond the columns and leaves missing ones empty.
  void add(Row row);
  /// Returns the head and each row, without trailing spaces. `right`: which columns are right-aligned, as numbers are;
  /// columns beyond its end are not.
  std::vector<std::string> lines(const std::vector<bool>& right) const;
  /// Returns the lines, with a rule under the head.
  std::string to_string(const std::vector<bool>& right) const;

 private:
  std::vector<Row> rows_;
};

}  // namespace levada
