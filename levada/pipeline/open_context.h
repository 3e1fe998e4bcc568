// The parameters with which a process opens its stages: its partition of the items, and its seeds.
//
// All random numbers of a pipeline's processes are derived from one number, the pipeline's seed, which is the same on
// all ranks. The epoch's shared seed is the XXH3-64 of the epoch number, seeded with the pipeline's seed; stages before
// a partition and before a dispatch use it. Own seeds are derived from the shared one by rank (counted from 1) and by
// worker (from 1; the consumer is 0, and so is a dispatching process without a dispatch). A stage seeds its generator
// with one of the two and its name, so that no two stages draw the same numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "levada/pipeline/graph.h"
#include "levada/pipeline/iterator.h"
#include "levada/pipeline/placement.h"

namespace levada::pipeline {

/// One of the processes that run copies of a pipeline's stages.
struct Copy {
  Role role = Role::consumer;
  int rank = 0, ranks = 1;
  int worker = 0, workers = 0;  ///< on this rank; `worker` is used only in a worker
};

/// Returns the parameters of a process in an epoch. Worker w of rank r keeps partition r + ranks * w of all: the
/// partitions of a rank's workers, taken in turns, equal the rank's partition without workers.
OpenContext make_open_context(std::uint64_t seed, std::int64_t epoch, const Copy& copy);

/// Returns the parameters of pass number `pass` of a Repeat: the given seeds for the first pass, then others. Without
/// `times`, the Repeat is endless. Throws InvalidArgument if the epoch number overflows.
OpenContext further_pass(const OpenContext& open_context, std::int64_t pass, std::optional<std::int64_t> times);

/// Returns the seed of the stage named `stage`.
std::uint64_t stage_seed(std::uint64_t seed, std::string_view stage);

/// Returns the partition of its input that a Shard keeps: one per rank if a dispatch before or after it deals items to
/// the workers, one per worker of all ranks if none does, and all of its input after another shard.
Partition partition_of(const Graph& graph, int shard, const OpenContext& open_context);

/// Returns whether a Shard is directly after a Source that divides, and so leaves the division to the source.
bool divides_at_source(const Graph& graph, int shard);

/// Returns whether all copies of `stage` draw the same random numbers, from the shared seed: stages of the dispatching
/// process, with or without workers, and stages whose input is the same everywhere and divided by a later shard.
bool draws_alike(const Graph& graph, int stage);

}  // namespace levada::pipeline
