// A histogram of lengths, shown in rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levada/report/style.h"

namespace levada::report {

/// Counts any number of non-negative lengths in memory of fixed size. A value.
class LengthHistogram {
 public:
  struct Row {
    std::int64_t from = 0, to = 0;  ///< lengths, both inclusive
    std::int64_t count = 0;         ///< number of items with such a length
    std::int64_t total = 0;         ///< sum of their lengths
    bool operator==(const Row&) const = default;
  };

  LengthHistogram();
  void add(std::int64_t length);

  std::int64_t count() const { return count_; }
  std::int64_t shortest() const { return count_ == 0 ? 0 : shortest_; }
  std::int64_t longest() const { return longest_; }
  double mean() const { return count_ == 0 ? 0 : static_cast<double>(total_) / static_cast<double>(count_); }
  /// Returns the length that this share of the items does not exceed: exact below 32, otherwise within 1/32.
  std::int64_t quantile(double share) const;
  /// Returns all lengths in rows that grow by a constant factor: the finest division into at most `max_rows` >= 2 rows.
  std::vector<Row> rows(std::size_t max_rows) const;

  /// Returns one row per line: lengths, things, their share of the sum of all lengths, and a bar. `things`:
  /// "documents".
  std::string to_string(const std::string& things, const Style& style, const std::string& indent) const;

 private:
  std::int64_t count_ = 0, total_ = 0, shortest_ = 0, longest_ = 0;
  std::vector<std::int64_t> counts_, totals_;  ///< by bucket
};

}  // namespace levada::report
