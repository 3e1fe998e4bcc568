// How files are read: threads, retries, limits.
#pragma once

#include <functional>
#include <string>

#include "levada/base/deadline.h"

namespace levada {

struct IoOptions {
  int threads = 1;        ///< threads that read concurrently
  double limit_mb_s = 0;  ///< limit for all files together, in 10^6 bytes per second; 0: none
  int tries = 5;          ///< attempts at one read or open while faults are transient: EIO, ESTALE, ETIMEDOUT, ...
  Duration retry_after = std::chrono::milliseconds(100);  ///< pause before the second try; doubles with each try
  Duration retry_for = std::chrono::seconds(30);          ///< no try begins later than this after the first failure
  Duration stall_after = std::chrono::seconds(10);        ///< duration of a read after which to warn; 0: never
  /// Receives a sentence for each failed try and for each stalled read. Called on any thread, also concurrently.
  std::function<void(const std::string&)> warn = {};
};

}  // namespace levada
