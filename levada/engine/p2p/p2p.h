// An engine made of point-to-point messages: over whatever carries frames from one rank to another.
// docs/design/p2p.md tells how.
#pragma once

#include <memory>

#include "levada/engine/engine.h"
#include "levada/engine/p2p/wire.h"

namespace levada::p2p {

struct Options {
  std::size_t memory_bytes = std::size_t{1} << 40;  ///< what the blocks of this rank may take together
};

/// This rank's engine over all ranks of the wire, each of which makes its own. Starts the wire.
std::shared_ptr<Engine> make_engine(std::shared_ptr<Wire> wire, const Options& options = {});

}  // namespace levada::p2p
