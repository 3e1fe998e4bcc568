// Micro-batches for ranks that wait for each other in each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "levada/plan/partition.h"

namespace levada {

/// The micro-batches that all ranks run at the same time, one after another: of each, the items of each rank,
/// ascending.
using Columns = std::vector<Partition>;

/// Divides items over `count` micro-batches on each of `ranks`, with at most max_tokens tokens and at least one item in
/// each, so that the sum over columns of busiest_of() is little more than waiting_bound(). The costliest item of a
/// column is what the others wait for, so long items come together: up to three columns are filled with the longest
/// that fit, and the rest is divided evenly; of a few ways to do so, the best is taken. Deterministic. Returns nothing
/// if it finds no such division; as the search is greedy, one may exist all the same. Requires what partition_within()
/// does.
std::optional<Columns> columns_within(std::span<const Demand> demands, std::size_t ranks, std::size_t count,
                                      std::int64_t max_tokens);

}  // namespace levada
