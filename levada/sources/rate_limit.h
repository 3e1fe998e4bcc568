// Limits how fast files are read.
#pragma once

#include <memory>
#include <mutex>

#include "levada/base/deadline.h"
#include "levada/sources/file.h"

namespace levada {

/// A token bucket of bytes. After a pause, allows a burst of a tenth of a second's worth. Thread-safe.
class RateLimit {
 public:
  /// `bytes_a_second` must be positive.
  explicit RateLimit(double bytes_a_second) : rate_(bytes_a_second) {}

  /// Takes `bytes` from the bucket and returns the earliest time at which their read may end.
  Clock::time_point take(std::size_t bytes, Clock::time_point now = Clock::now());

 private:
  double rate_;
  std::mutex mutex_;
  Clock::time_point free_{};  ///< when the bytes taken so far are paid for
};

/// Returns `file` with reads that end no earlier than `limit` allows.
std::unique_ptr<File> make_limited_file(std::unique_ptr<File> file, std::shared_ptr<RateLimit> limit);

}  // namespace levada
