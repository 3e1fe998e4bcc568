// Decides how many items a message holds: enough that the cost of a message is negligible, few enough that no process
// waits long for a finished item.
#pragma once

#include <algorithm>
#include <cstdint>

#include "levada/base/deadline.h"

namespace levada::pipeline {

/// Adapts the size of the next message to the last one. A value; callers pass the time. The size starts at one item, at
/// most doubles from message to message, and returns to one as soon as items are slow or large.
class MessageSizer {
 public:
  static constexpr Duration message_time = std::chrono::microseconds(150);
  static constexpr std::size_t message_bytes = std::size_t{1} << 20;
  static constexpr std::int64_t max_items = 4096;

  MessageSizer() = default;
  explicit MessageSizer(std::int64_t limit) : max_(std::max<std::int64_t>(limit, 1)) {}

  /// Called before the first item of a message is made.
  void begin(Clock::time_point now) {
    begun_ = now;
    count_ = 0;
  }
  /// Called after an item has been made. Returns whether the message is full.
  template <typename Now>
  bool add(Now&& now) {
    ++count_;
    if (count_ >= target_) return true;
    // Reading the clock costs as much as a small item.
    return (count_ < 16 || count_ % 16 == 0) && now() - begun_ >= message_time;
  }
  /// Called once the message has been made, by `now`, with `bytes` of items.
  void sent(Clock::time_point now, std::size_t bytes) {
    if (count_ == 0) return;
    const double time_share = std::max<double>(static_cast<double>((now - begun_).count()), 1) / message_time.count();
    const double share = std::max(time_share, static_cast<double>(bytes) / message_bytes);
    const double wanted = std::min(static_cast<double>(count_) / share, 2.0 * static_cast<double>(target_));
    target_ = std::clamp(static_cast<std::int64_t>(wanted), std::int64_t{1}, max_);
  }

 private:
  std::int64_t max_ = max_items;
  std::int64_t target_ = 1;
  std::int64_t count_ = 0;
  Clock::time_point begun_;
};

}  // namespace levada::pipeline
