// Division of items over ranks so that each gets about the same work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "levada/plan/sample_cost.h"

namespace levada {

/// The items of each part: parts[p] are item numbers, ascending. Every item is in exactly one part.
using Partition = std::vector<std::vector<std::size_t>>;

enum class PartSizes : std::uint8_t {
  any,    ///< as many items as balance requires
  equal,  ///< the item counts of any two parts differ by at most one
};

/// Divides items over `parts` so that the cost of the costliest part is close to the minimum. First, greedily adds the
/// costliest item to the cheapest part (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969); with equal
/// counts, one item of each group of `parts` items to each part. Then moves an item from the costliest part to a cheap
/// one, or exchanges two items, as long as that lowers the higher of their two costs. With `any`, the costliest part
/// costs at most 4/3 - 1/(3*parts) times as much as in the best division. Deterministic. Parts are in the order of
/// their first items, empty ones last; none is empty unless there are fewer items than parts. Throws InvalidArgument:
/// no parts; a negative cost; costs whose sum exceeds 63 bits; with `equal`, fewer items than parts.
Partition partition_by_cost(std::span<const std::int64_t> costs, std::size_t parts, PartSizes sizes = PartSizes::any);

/// An item's contribution to its part. The cost of a part is the larger of its sums of `first` and of `second`, so the
/// caller must bring both to the same scale.
struct Demand {
  Work work = {};
  std::int64_t tokens = 0;
};

/// Returns the larger of the two kinds of work.
constexpr std::int64_t level_of(const Work& work) {
  return work.first > work.second ? work.first : work.second;
}
/// Returns the total work of the items.
Work work_of(std::span<const std::size_t> items, std::span<const Demand> demands);
/// Returns the level of the work of the costliest part.
std::int64_t busiest_of(const Partition& parts, std::span<const Demand> demands);

enum class Search : std::uint8_t {
  none,      ///< greedy only
  quick,     ///< also exchanges one item for one, as partition_by_cost() does
  thorough,  ///< also exchanges one item for several, which parts that are full of tokens need
};

/// Like partition_by_cost(), with at most max_tokens tokens and at least min_items items in each part. Returns nothing
/// if it finds no such division; as the search is greedy, one may exist nevertheless. Requires that first, second and
/// tokens are 0 or more, that the sum of each over all items is less than 2^62, and that min_items is 1 or more.
std::optional<Partition> partition_within(std::span<const Demand> demands, std::size_t parts, std::int64_t max_tokens,
                                          PartSizes sizes = PartSizes::any, std::size_t min_items = 1,
                                          Search search = Search::quick);

/// Cuts a sequence of items into `parts` consecutive runs so that the costliest run costs the least possible. Every
/// part has an item. Throws InvalidArgument: no parts, a negative cost, or fewer items than parts.
Partition partition_in_order(std::span<const std::int64_t> costs, std::size_t parts);

/// Returns the cost of each part.
std::vector<std::int64_t> costs_by_part(const Partition& partition, std::span<const std::int64_t> costs);

}  // namespace levada
