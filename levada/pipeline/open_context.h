// What the stages of a process are opened with: their part of the items, and their seeds.
//
// What a pipeline's processes draw at random from. One number, the same on all ranks, decides all of it:
//   the epoch's shared seed is XXH3-64 of the epoch's number, seeded with it: of what runs before a partition, and in
//   the dispatching process; own seeds are derived from it by rank (counted from 1), and by worker (from 1; the
//   consumer is 0); a stage draws from one of the two and from its name, so that two stages do not draw the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "levada/pipeline/graph.h"
#include "levada/pipeline/iterator.h"
#include "levada/pipeline/placement.h"

namespace levada::pipeline {

/// A process among those that run copies of a pipeline's stages.
struct Copy {
  Role role = Role::consumer;
  int rank = 0, ranks = 1;
  int worker = 0, workers = 0;  ///< of this rank; `worker` is looked at in a worker alone
};

/// What the stages of that process are opened with in that epoch. Of parts among all, worker w of rank r keeps part
/// r + ranks * w: what the workers of a rank keep, taken in turns, is what the rank keeps without workers.
OpenContext make_open_context(std::uint64_t seed, std::int64_t epoch, const Copy& copy);

/// What a Repeat opens its pass number `pass` of `times` with: of the first the seeds given, then others. `times` of
/// nothing: endlessly. Throws InvalidArgument where the number of the epoch does not fit.
OpenContext further_pass(const OpenContext& open_context, std::int64_t pass, std::optional<std::int64_t> times);

/// The seed of the stage of that name.
std::uint64_t stage_seed(std::uint64_t seed, std::string_view stage);

/// The part of what reaches it that a Shard keeps: one of the ranks' where a dispatch before or after it has the items
/// dealt to the workers, one of all workers' of all ranks where none does, and all of it behind another shard.
Partition partition_of(const Graph& graph, int shard, const OpenContext& open_context);

/// Whether it stands right after a Source that divides, and so leaves all dividing to it.
bool divides_at_source(const Graph& graph, int shard);

/// Whether all copies of `stage` draw at random alike, by the shared seed: what the dispatching process runs, with
/// workers or without, and what is given the same items everywhere, of which a shard after it makes parts.
bool draws_alike(const Graph& graph, int stage);

}  // namespace levada::pipeline
