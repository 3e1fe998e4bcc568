// An engine made of point-to-point messages: over whatever carries frames from one rank to another.
// docs/design/p2p.md explains how.
#pragma once

#include <functional>
#include <memory>

#include "levada/base/memory_limits.h"
#include "levada/engine/engine.h"
#include "levada/engine/p2p/transport.h"

namespace levada::p2p {

struct Options {
  /// What the blocks that this rank allocates may take together; 0: what the machine allows. Messages that it receives
  /// lie in other memory, bounded by the windows of its channels and the leases that it keeps.
  std::size_t memory_bytes = 0;
  /// How often a rank that waits asks what the others do, and looks again at what wakes nobody. 0: every 100 ms, and
  /// 10 ms more for each rank.
  Duration heartbeat = Duration::zero();
  std::function<MemoryLimits()> limits = [] { return memory_limits(); };
  int degree = default_degree;  ///< EngineInfo::degree
};

/// This rank's engine over all ranks of the transport, each of which makes its own. Starts the transport.
std::shared_ptr<Engine> make_engine(std::shared_ptr<Transport> transport, const Options& options = {});

}  // namespace levada::p2p
