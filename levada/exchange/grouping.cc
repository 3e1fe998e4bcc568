#include "levada/exchange/grouping.h"

namespace levada {

void stable_sort_by(std::vector<std::uint32_t>& order, std::span<const std::uint32_t> group, std::size_t groups) {
  std::vector<std::uint32_t> next(groups + 1, 0);
  for (const std::uint32_t i : order) ++next[group[i] + 1];
  for (std::size_t each = 1; each <= groups; ++each) next[each] += next[each - 1];
  std::vector<std::uint32_t> sorted(order.size());
  for (const std::uint32_t i : order) sorted[next[group[i]]++] = i;
  order = std::move(sorted);
}

}  // namespace levada
