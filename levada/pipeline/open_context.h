// The parameters with which a process opens its stages: its partition of the items, and its seeds.
//
// All random numbers of a pipeline's processes are derived from one number, the pipeline's seed, which is the same on
// all ranks. The epoch's shared seed is XXH3-64 of the epoch's number, seeded with it; stages before a partition and
// before a dispatch use it. Own seeds are derived from it by rank (counted from 1) and by worker (from 1; the consumer
// is 0, and so is a dispatching process without a dispatch). A stage draws from one of the two and its name, so that
// two stages draw different numbers.
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
  int worker = 0, workers = 0;  ///< of this rank; `worker` is used only in a worker
};

/// Returns the parameters of a process in an epoch. Worker w of rank r keeps partition r + ranks * w of all: the
/// partitions of a rank's workers, taken in turns, are the rank's partition without workers.
OpenContext make_open_context(std::uint64_t seed, std::int64_t epoch, const Copy& copy);

/// Returns the parameters of a Repeat's pass number `pass` of `times`: for the first the given seeds, then others.
/// `times` of nothing: endlessly. Throws InvalidArgument if the number of the epoch does not fit.
OpenContext further_pass(const OpenContext& open_context, std::int64_t pass, std::optional<std::int64_t> times);

/// Returns the seed of the stage of that name.
std::uint64_t stage_seed(std::uint64_t seed, std::string_view stage);

/// Returns the partition of its input that a Shard keeps: one per rank if a dispatch before or after it deals items to
/// the workers, one per worker of all ranks if none does, and all of its input after another shard.
Partition partition_of(const Graph& graph, int shard, const OpenContext& open_context);

/// Returns whether a Shard is directly after a Source that divides, and so leaves dividing to the source.
bool divides_at_source(const Graph& graph, int shard);

/// Returns whether all copies of `stage` draw the same random numbers, by the shared seed: stages of the dispatching
/// process, with or without workers, and stages with the same input everywhere, which a later shard divides.
bool draws_alike(const Graph& graph, int stage);

}  // namespace levada::pipeline
