// Two short measurements that say what shared memory can give on this machine.
#pragma once

namespace levada::cli {

/// GB/s that one core copies between buffers larger than its caches.
double measure_copy();
/// Microseconds from waking a sleeping thread to its running: half of the median round trip.
double measure_wake();

}  // namespace levada::cli
