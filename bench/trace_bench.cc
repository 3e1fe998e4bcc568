// The cost of recording a span.
#include <benchmark/benchmark.h>

#include "levada/base/trace.h"

namespace levada {
namespace {

void spans(benchmark::State& state, TraceLog* log) {
  std::int64_t step = 0;
  for (auto _ : state) {
    const TraceScope scope(log, TraceThread::step, TraceKind::step, step++);
    benchmark::ClobberMemory();
  }
}

void without_log(benchmark::State& state) {
  spans(state, nullptr);
}

void with_log(benchmark::State& state) {
  TraceLog log;
  spans(state, &log);
}

BENCHMARK(without_log);
BENCHMARK(with_log);
/// A log that is still filling, which has to allocate memory.
BENCHMARK(with_log)->Name("with_log_filling")->Iterations(150'000);

}  // namespace
}  // namespace levada

BENCHMARK_MAIN();
