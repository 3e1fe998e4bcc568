// Counters of the batches that a feed has delivered so far.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>

#include "levada/feed/feed.h"

namespace levada {

/// The FeedStats that next() updates. Any thread may read them concurrently.
class LiveStats {
 public:
  /// `taking`: see FeedStats; a negative value counts as 0.
  void add_batch(std::int64_t samples, std::uint64_t bytes, bool copied, Duration taking) {
    const std::lock_guard lock(mutex_);
    ++stats_.batches;
    stats_.samples += samples;
    stats_.bytes += bytes;
    stats_.copied_batches += copied ? 1 : 0;
    stats_.taking += std::max(taking, Duration{});
  }

  /// Returns the counters, including the current wait so far.
  FeedStats now() const {
    const std::lock_guard lock(mutex_);
    auto stats = stats_;
    if (waiting_since_) stats.waited += Clock::now() - *waiting_since_;
    return stats;
  }

  /// Counts the time of its scope as waited.
  class Wait {
   public:
    explicit Wait(LiveStats& stats) : stats_(stats) {
      const std::lock_guard lock(stats_.mutex_);
      stats_.waiting_since_ = start_;
    }
    ~Wait() {
      const std::lock_guard lock(stats_.mutex_);
      stats_.stats_.waited += elapsed();
      stats_.waiting_since_.reset();
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

    Duration elapsed() const { return Clock::now() - start_; }

   private:
    LiveStats& stats_;
    Clock::time_point start_ = Clock::now();
  };

 private:
  mutable std::mutex mutex_;
  FeedStats stats_;
  std::optional<Clock::time_point> waiting_since_;
};

}  // namespace levada
