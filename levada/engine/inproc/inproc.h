// The reference engine, whose ranks are threads of one process.
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

/// Returns one engine for each rank. The engines may be used on separate threads or all on one.
std::vector<std::shared_ptr<Engine>> make_group(int size, const Options& options = {});

/// Makes the rank lost to its peers as if its process had died, in this group and in all others that it shares with
/// them. Its own calls fail, too. For tests, because a thread cannot be killed. Throws InvalidArgument for any other
/// engine.
void lose(Engine& engine);

/// Runs `body` on one thread per rank and waits for all of them. If one throws, aborts the group so that the others
/// end, and rethrows the first exception that is not a repetition of that abort.
void run_ranks(int size, const std::function<void(std::shared_ptr<Engine>)>& body, const Options& options = {});

}  // namespace levada::inproc
