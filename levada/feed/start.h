// The collective start of a feed.
#pragma once

#include <memory>

#include "levada/feed/feed.h"
#include "levada/feed/wiring.h"

namespace levada {

/// Returns the maximum number of batches that a rank may lag behind its reader.
int depth_of(const Mesh& mesh, const FeedOptions& options);

/// Checks the options, compares them and the readers' sources across all ranks, and creates the group and the channels
/// of the pass. Collective. Throws as Feed's constructor does.
FeedWiring start_feed(const std::shared_ptr<Engine>& engine, const Mesh& mesh, const Layout& layout,
                      const std::shared_ptr<Source>& source, const FeedOptions& options);

}  // namespace levada
