// How files are read: threads, retries, limits.
#pragma once

#include <functional>
#include <string>

#include "levada/base/deadline.h"

namespace levada {

struct IoOptions {
  int threads = 1;        ///< that read side by side
  double limit_mb_s = 0;  ///< 10^6 bytes a second that all files together are read with; 0: as fast as they come
  int tries = 5;          ///< of one read or opening, where the fault may pass: EIO, ESTALE, ETIMEDOUT, ...
  Duration retry_after = std::chrono::milliseconds(100);  ///< before the second try; twice as long before each further
  Duration retry_for = std::chrono::seconds(30);          ///< no try begins later after the first has failed
  Duration stall_after = std::chrono::seconds(10);        ///< a read that takes longer is warned of; 0: none is
  /// Receives a sentence for each try that failed and for each read that stalls. Any thread may call it, several at
  /// once.
  std::function<void(const std::string&)> warn = {};
};

}  // namespace levada
