// Short measurements of the speed of this machine's shared memory and network.
#pragma once

#include <optional>

namespace levada::cli {

/// Returns the GB/s that `threads` threads together copy between buffers larger than the caches.
double measure_copy(int threads);
/// Returns the microseconds from waking a sleeping thread until it runs: half of the median round trip.
double measure_wake();
/// Returns the latency of a small message over loopback TCP to a sleeping thread, in microseconds: half of the median
/// round trip. Returns nothing if the system has no loopback network.
std::optional<double> measure_message();

}  // namespace levada::cli
