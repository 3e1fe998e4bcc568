// Files read no faster than somebody allows.
#pragma once

#include <memory>
#include <mutex>

#include "levada/base/deadline.h"
#include "levada/sources/file.h"

namespace levada {

/// A token bucket of bytes: after a rest, a tenth of a second's worth at once. Any thread may call.
class RateLimit {
 public:
  /// `bytes_a_second` above zero.
  explicit RateLimit(double bytes_a_second) : rate_(bytes_a_second) {}

  /// Removes that many bytes from the bucket, and returns the time before which the read of them must not end.
  Clock::time_point take(std::size_t bytes, Clock::time_point now = Clock::now());

 private:
  double rate_;
  std::mutex mutex_;
  Clock::time_point free_{};  ///< when what has been taken is paid for
};

/// `file`, whose reads end no earlier than `limit` allows.
std::unique_ptr<File> make_limited_file(std::unique_ptr<File> file, std::shared_ptr<RateLimit> limit);

}  // namespace levada
