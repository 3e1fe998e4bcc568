// Ranks as threads of one process: the reference engine.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "levada/engine/engine.h"

namespace levada::inproc {

struct Options {
  std::size_t memory_bytes = std::size_t{1} << 40;      ///< limit on the blocks of one rank
  Duration heartbeat = std::chrono::milliseconds(200);  ///< how often a sleeping thread checks for changes that wake no
                                                        ///< thread
};

/// Returns one engine for each rank. Each may be used on a separate thread, or all on one.
std::vector<std::shared_ptr<Engine>> make_group(int size, const Options& options = {});

/// For tests, since a thread cannot be killed: makes the rank lost to its peers as if its process had died, in this
/// group and in all others that it shares with them. Its calls fail too. Throws InvalidArgument for any other engine.
void lose(Engine& engine);

/// Runs `body` on one thread for each rank and waits for all. If any throws, aborts the group so that the others end,
/// and rethrows the first exception that is not an echo of that abort.
void run_ranks(int size, const std::function<void(std::shared_ptr<Engine>)>& body, const Options& options = {});

}  // namespace levada::inproc
