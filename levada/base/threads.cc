#include "levada/base/threads.h"

#include <fmt/format.h>

#include "levada/base/error.h"

namespace levada {

void throw_no_thread(std::string_view what, std::error_code refusal) {
  throw EngineError(
      fmt::format("cannot start a thread for {}: {}; allow more processes (ulimit -u, the cgroup's pids.max) or more "
                  "address space (ulimit -v)",
                  what, refusal.message()));
}

}  // namespace levada
