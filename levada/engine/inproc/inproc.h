// Ranks as threads of one process: the reference engine.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "levada/engine/engine.h"

namespace levada::inproc {

struct Options {
  std::size_t memory_bytes = std::size_t{1} << 40;  ///< what all blocks of one rank may take together
};

/// One engine a rank; each may be used on a thread of its own, or all on one.
std::vector<std::shared_ptr<Engine>> make_group(int size, const Options& options = {});

/// Runs `body` on a thread a rank and waits for all. When some throw, the group is aborted so that the others end, and
/// the first rank's exception that is not the echo of that abort is thrown again.
void run_ranks(int size, const std::function<void(std::shared_ptr<Engine>)>& body, const Options& options = {});

}  // namespace levada::inproc
