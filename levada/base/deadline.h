// Points in time at which a wait gives up.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace levada {

using Clock = std::chrono::steady_clock;
using Duration = Clock::duration;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// A point in time on the steady clock. A value: pass it through nested waits, so that they share one limit.
class Deadline {
 public:
  static Deadline after(Duration wait);
  static Deadline never() { return Deadline(Clock::time_point::max()); }
  /// Returns a deadline that has already passed, which turns a blocking call into a poll.
  static Deadline now() { return Deadline(Clock::time_point::min()); }

  bool is_never() const { return at_ == Clock::time_point::max(); }
  bool expired() const { return !is_never() && Clock::now() >= at_; }
  /// Returns the time left: at least zero, or Duration::max() for never().
  Duration remaining() const;
  Clock::time_point at() const { return at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

/// Parses "250us", "500ms", "30s", "2m", "1h"; a bare number is seconds. Throws InvalidArgument that names the text.
Duration parse_duration(std::string_view text);
/// Returns a human-readable duration: "30.0 s", "12.5 ms", "7 us".
std::string format_duration(Duration duration);

}  // namespace levada
