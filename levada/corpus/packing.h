// Which documents share a sample, as arithmetic on numbers.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace levada {

/// The way in which documents become samples.
enum class Packing : std::uint8_t {
  cut,        ///< concatenated and cut
  best_fit,   ///< several whole documents per sample, best fit decreasing
  documents,  ///< one document per sample
};

/// Parses "cut", "best-fit" or "documents". Throws InvalidArgument for another word.
Packing parse_packing(std::string_view word);

/// Items assigned to bins.
struct BinPacking {
  std::vector<std::uint32_t> bin_of;  ///< by item
  std::uint32_t bins = 0;
};

/// Packs items by best fit decreasing: from the largest to the smallest, and among equals from the first to the last,
/// each item goes into the bin with the least sufficient room, the first such bin in case of a tie, or into a new bin
/// if no room suffices. `sizes`: from 1 to `capacity` each. A bin holds at most `max_items` items.
BinPacking pack_best_fit(std::span<const std::int64_t> sizes, std::int64_t capacity,
                         std::int64_t max_items = std::numeric_limits<std::int64_t>::max());

}  // namespace levada
