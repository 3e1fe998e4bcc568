// What a rank did and when: recorded while it happens, at little cost, and carried to where it is shown.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"

namespace levada {

/// What a rank's time goes to.
enum class TraceKind : std::uint8_t {
  step = 1,  ///< work of the caller's own
  handover,  ///< waiting for a message, of which nothing more is known
  grant,     ///< waiting for the word that what has arrived may be used
  read,      ///< reading from storage
  pack,      ///< making messages
  room,      ///< waiting for a rank that has not received what it was sent
  memory,    ///< waiting for memory
};
inline constexpr std::size_t trace_kinds = 8;  ///< one more than the last

/// Which of a rank's threads: the one that takes steps, or the one that reads ahead.
enum class TraceThread : std::uint8_t { step = 0, reader = 1 };

/// A stretch of time. Times are nanoseconds on the steady clock, which all processes of a host share.
struct TraceSpan {
  TraceKind kind = TraceKind::step;
  TraceThread thread = TraceThread::step;
  std::int32_t other = -1;  ///< the rank that was waited for, or sent what a step works on; -1: none
  std::int64_t step = 0;
  std::int64_t begin_ns = 0;
  std::int64_t duration_ns = 0;

  std::int64_t end_ns() const { return begin_ns + duration_ns; }
  bool operator==(const TraceSpan&) const = default;
};

/// How much memory was in use at one moment.
struct TraceSample {
  std::int64_t step = 0;
  std::int64_t time_ns = 0;
  std::uint64_t bytes = 0;
  bool operator==(const TraceSample&) const = default;
};

/// What was recorded of one rank. Of every `stride` steps one is there, whole.
struct Trace {
  std::vector<TraceSpan> spans;  ///< in the order of their ends; of one thread they follow each other or nest
  std::vector<TraceSample> memory;
  std::int64_t stride = 1;
  std::uint64_t dropped = 0;  ///< spans and samples that were left out

  /// Leaves out the steps that a multiple of `stride` would not have.
  void thin(std::int64_t to_stride);
  bool operator==(const Trace&) const = default;
};

Bytes encode(const Trace& trace);
/// Reads bytes that may lie. Throws CorruptMessage. Ranks in it may be any.
Trace decode_trace(ByteView bytes);

/// Nanoseconds on the steady clock.
inline std::int64_t trace_time(Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

/// Records; any thread. Memory is bounded: when it is full, every other step that it has is left out, and from then on
/// every other step that comes.
class TraceLog {
 public:
  explicit TraceLog(std::size_t max_events = 200'000) : max_events_(max_events) {}

  /// Extends the previous span of the thread where this one continues it after a short gap, else adds the span.
  void add(const TraceSpan& span);
  void add(const TraceSample& sample);
  /// What has been recorded so far.
  Trace trace() const;

 private:
  bool has_place(std::int64_t step);
  bool prolongs(const TraceSpan& span);

  std::size_t max_events_;
  mutable std::mutex mutex_;
  Trace trace_;
  std::array<std::size_t, 2> last_{};  ///< of each thread, the number after that of its last span; 0: none
};

/// Records the time from its making to its end; where there is no log, nothing.
class TraceScope {
 public:
  TraceScope(TraceLog* log, TraceThread thread, TraceKind kind, std::int64_t step, int other = -1) : log_(log) {
    if (log_ == nullptr) return;
    span_ = {.kind = kind, .thread = thread, .other = other, .step = step, .begin_ns = trace_time(Clock::now())};
  }
  ~TraceScope() {
    if (log_ == nullptr) return;
    span_.duration_ns = trace_time(Clock::now()) - span_.begin_ns;
    log_->add(span_);
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceLog* log_;
  TraceSpan span_;
};

}  // namespace levada
