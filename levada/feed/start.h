// How the ranks of a feed start it together.
#pragma once

#include <memory>

#include "levada/feed/feed.h"
#include "levada/feed/wiring.h"

namespace levada {

/// Batches that a rank may be behind its reader.
int depth_of(const Mesh& mesh, const FeedOptions& options);

/// Checks the options, compares them and the readers' sources between all ranks, and makes the group and the channels
/// of the pass. Collective. Throws as Feed's constructor does.
FeedWiring start_feed(const std::shared_ptr<Engine>& engine, const Mesh& mesh, const Layout& layout,
                      const std::shared_ptr<Source>& source, const FeedOptions& options);

}  // namespace levada
