// Short measurements of the speed of this machine's shared memory and network.
#pragma once

#include <optional>

namespace levada::cli {

/// GB/s that one core copies between buffers larger than its caches.
double measure_copy();
/// Microseconds from waking a sleeping thread to its running: half of the median round trip.
double measure_wake();
/// Microseconds from sending a small message over TCP, without leaving the machine, to a sleeping thread's having it:
/// half of the median round trip. Empty where the system has no loopback network.
std::optional<double> measure_message();

}  // namespace levada::cli
