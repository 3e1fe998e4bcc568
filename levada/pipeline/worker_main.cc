#include "levada/pipeline/worker_main.h"

#include <fmt/format.h>

#include "levada/pipeline/worker_runtime.h"

namespace levada::pipeline {

void serve(const Process& process) {
  WorkerRuntime runtime(process);
  const ProcessRanks& ranks = runtime.ranks();
  const EngineInfo& info = process.engine->info();
  try {
    if (ranks.has_dispatcher && info.rank == ProcessRanks::dispatcher) dispatch(runtime);
    else work(runtime, info.rank - ranks.rank_of(0));
  } catch (const PeerLost&) {
    throw;
  } catch (const std::exception& error) {
    // Before the runtime is destroyed: otherwise the other processes would see this one leave without its reason.
    process.engine->abort(fmt::format("{}: {}", process.name, error.what()));
    throw;
  }
}

}  // namespace levada::pipeline
