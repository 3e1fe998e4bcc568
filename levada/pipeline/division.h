// Where a pipeline's items are divided, and among whom.
#pragma once

#include "levada/pipeline/graph.h"

namespace levada::pipeline {

/// The part of what reaches it that a Shard keeps: one of the ranks' where a dispatch before or after it has the items
/// dealt to the workers, one of all workers' of all ranks where none does, and all of it behind another shard.
Division division_of(const Graph& graph, int shard, const Opening& opening);

/// Whether it stands right after a Source that divides, and so leaves all dividing to it.
bool divides_at_source(const Graph& graph, int shard);

/// Whether all copies of `stage` draw at random alike, by the shared seed: what the dispatching process runs, with
/// workers or without, and what is given the same items everywhere, of which a shard after it makes parts.
bool draws_alike(const Graph& graph, int stage);

}  // namespace levada::pipeline
