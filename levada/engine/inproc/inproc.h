// Ranks as threads of one process: the reference engine.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "levada/engine/engine.h"

namespace levada::inproc {

struct Options {
  std::size_t memory_bytes = std::size_t{1} << 40;      ///< what all blocks of one rank may take together
  Duration heartbeat = std::chrono::milliseconds(200);  ///< how often a sleeping thread looks at what wakes nobody
};

/// One engine a rank; each may be used on a thread of its own, or all on one.
std::vector<std::shared_ptr<Engine>> make_group(int size, const Options& options = {});

/// For tests, since a thread cannot be killed: the rank is lost to its peers as if its process had died, in this group
/// and all others that it shares with them; its own calls fail too. Throws InvalidArgument for another kind of engine.
void lose(Engine& engine);

/// Runs `body` on a thread a rank and waits for all. When some throw, the group is aborted so that the others end, and
/// the first rank's exception that is not the echo of that abort is thrown again.
void run_ranks(int size, const std::function<void(std::shared_ptr<Engine>)>& body, const Options& options = {});

}  // namespace levada::inproc
