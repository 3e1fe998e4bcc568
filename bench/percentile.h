// What benchmarks make of their rounds.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace levada::bench {

/// The value below which `part` of the others lie: 0.5 gives the median, 0.99 the 99th percentile. At least one value.
inline double percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(std::llround(part * static_cast<double>(values.size() - 1)))];
}

}  // namespace levada::bench
