#include "levada/corpus/packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {

Packing parse_packing(std::string_view word) {
  if (word == "cut") return Packing::cut;
  if (word == "best-fit") return Packing::best_fit;
  if (word == "documents") return Packing::documents;
  throw InvalidArgument(fmt::format("packing must be cut, best-fit or documents, got {}", printable(word)));
}

BinPacking pack_best_fit(std::span<const std::int64_t> sizes, std::int64_t capacity, std::int64_t max_items) {
  std::vector<std::uint32_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](std::uint32_t item) { return sizes[item]; });
  BinPacking packing{.bin_of = std::vector<std::uint32_t>(sizes.size())};
  std::set<std::pair<std::int64_t, std::uint32_t>> open;  // the remaining room, and the bin
  std::vector<std::int64_t> counts;                       // number of items in each bin
  for (const auto item : order) {
    const auto size = sizes[item];
    auto best = open.lower_bound({size, 0});
    const bool is_new = best == open.end();
    auto [room, bin] = is_new ? std::pair(capacity, packing.bins++) : *best;
    if (is_new) counts.push_back(0);
    else open.erase(best);
    if (room > size && ++counts[bin] < max_items) open.emplace(room - size, bin);
    packing.bin_of[item] = bin;
  }
  return packing;
}

}  // namespace levada
