// Rows and columns of text.
#pragma once

#include <string>
#include <vector>

#include "levada/report/style.h"

namespace levada::report {

/// A table of aligned columns, two spaces apart, its header in bold where the style has colours. A value.
class Table {
 public:
  enum class Align : unsigned char { left, right };
  struct Column {
    std::string name;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// Cells beyond the columns are dropped, missing ones are empty.
  void add_row(std::vector<std::string> cells);
  /// Every line begins with `indent` and ends with a newline; no trailing spaces.
  std::string to_string(const Style& style = {}, const std::string& indent = "") const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace levada::report
