// Random lengths of documents, for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace levada {

/// Returns lengths from 1 to about `max`, many short and few long ones.
inline std::vector<std::int64_t> some_lengths(std::size_t count, unsigned seed, std::int64_t max) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> lengths(count);
  for (auto& length : lengths) {
    length = 1 + static_cast<std::int64_t>(
                     std::exp2(static_cast<double>(random() % 1000) / 1000.0 * std::log2(static_cast<double>(max))));
  }
  return lengths;
}

}  // namespace levada
