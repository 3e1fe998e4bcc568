// Micro-batches for ranks that wait for each other in each micro-batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "levada/plan/partition.h"

namespace levada {

/// The micro-batches of a step as columns: a column holds the items of each rank, ascending, in the micro-batch that
/// all ranks run at the same time.
using Columns = std::vector<Partition>;

/// Divides items over `count` micro-batches on each of `ranks`, with at most max_tokens tokens and at least one item in
/// each, so that the sum over columns of busiest_of() is close to waiting_bound(). All ranks wait for the costliest
/// item of a column, so long items are grouped: up to three columns are filled with the longest items that fit, and the
/// rest is divided evenly. Tries a few variants and returns the best. Deterministic. Returns nothing if it finds no
/// such division; as the search is greedy, one may exist nevertheless. Same requirements as partition_within().
std::optional<Columns> columns_within(std::span<const Demand> demands, std::size_t ranks, std::size_t count,
                                      std::int64_t max_tokens);

}  // namespace levada
