// An engine that uses point-to-point messages, over any transport that carries frames between ranks. See
// docs/design/p2p.md.
#pragma once

#include <functional>
#include <memory>

#include "levada/base/memory_limits.h"
#include "levada/engine/engine.h"
#include "levada/engine/p2p/transport.h"

namespace levada::p2p {

struct Options {
  /// Maximum memory of all blocks that this rank allocates; 0 for as much as the machine allows. Received messages use
  /// other memory, bounded by the windows of its channels and the leases that it keeps.
  std::size_t memory_bytes = 0;
  /// How often a waiting rank asks for the status of the others, and rechecks conditions that wake no thread. 0 for
  /// every 100 ms, plus 10 ms per rank.
  Duration heartbeat = Duration::zero();
  std::function<MemoryLimits()> limits = [] { return memory_limits(); };
  int degree = default_degree;  ///< EngineInfo::degree
};

/// Returns this rank's engine over all ranks of the transport, and starts the transport. Every rank calls this.
std::shared_ptr<Engine> make_engine(std::shared_ptr<Transport> transport, const Options& options = {});

}  // namespace levada::p2p
