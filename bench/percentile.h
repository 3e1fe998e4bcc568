// Statistics of a benchmark's rounds.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace levada::bench {

/// Returns the value at quantile `part`: 0.5 returns the median, 0.99 the 99th percentile. `values` must not be empty.
inline double percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(std::llround(part * static_cast<double>(values.size() - 1)))];
}

}  // namespace levada::bench
