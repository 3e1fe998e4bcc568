// Records what a rank does and when, cheaply, and serializes the recording for the process that shows it.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"

namespace levada {

/// The activity on which a rank spends time.
enum class TraceKind : std::uint8_t {
  step = 1,  ///< the caller's own work
  handover,  ///< waiting for a message whose sender's activity is unknown
  grant,     ///< waiting for permission to use a message that has arrived
  read,      ///< reading from storage
  pack,      ///< packing messages
  room,      ///< waiting for a receiver that still has unreceived messages
  memory,    ///< waiting for memory
};
inline constexpr std::size_t trace_kinds = 8;  ///< one more than the last

/// The thread of a rank: the one that takes steps, or the one that reads ahead.
enum class TraceThread : std::uint8_t { step = 0, reader = 1 };

/// A span of time. Times are nanoseconds on the steady clock, which all processes of a host share.
struct TraceSpan {
  TraceKind kind = TraceKind::step;
  TraceThread thread = TraceThread::step;
  std::int32_t other = -1;  ///< the rank waited for, or the sender of a step's data; -1: none
  std::int64_t step = 0;
  std::int64_t begin_ns = 0;
  std::int64_t duration_ns = 0;

  std::int64_t end_ns() const { return begin_ns + duration_ns; }
  bool operator==(const TraceSpan&) const = default;
};

/// The memory in use at one moment.
struct TraceSample {
  std::int64_t step = 0;
  std::int64_t time_ns = 0;
  std::uint64_t bytes = 0;
  bool operator==(const TraceSample&) const = default;
};

/// The recording of one rank. Every `stride`-th step is kept, complete.
struct Trace {
  std::vector<TraceSpan> spans;  ///< in order of their ends; spans of one thread are disjoint or nested
  std::vector<TraceSample> memory;
  std::int64_t stride = 1;
  std::uint64_t dropped = 0;  ///< spans and samples that were left out

  /// Drops the steps that are not multiples of `to_stride`.
  void thin(std::int64_t to_stride);
  bool operator==(const Trace&) const = default;
};

Bytes encode(const Trace& trace);
/// Reads untrusted bytes. Throws CorruptMessage. Ranks are not checked against any mesh.
Trace decode_trace(ByteView bytes);

/// Returns nanoseconds on the steady clock.
inline std::int64_t trace_time(Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

/// Records spans and samples in bounded memory. When the log is full, it drops every other step that it holds, and from
/// then on records only every other one. Thread-safe.
class TraceLog {
 public:
  explicit TraceLog(std::size_t max_events = 200'000) : max_events_(max_events) {}

  /// Extends the thread's previous span if this one continues it after a short gap. Otherwise adds the span.
  void add(const TraceSpan& span);
  void add(const TraceSample& sample);
  /// Returns everything recorded so far.
  Trace trace() const;

 private:
  bool has_place(std::int64_t step);
  bool prolongs(const TraceSpan& span);

  std::size_t max_events_;
  mutable std::mutex mutex_;
  Trace trace_;
  std::array<std::size_t, 2> last_{};  ///< per thread: index of its last span plus one, or 0 if none
};

/// Records an activity from construction to destruction. Does nothing without a log.
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
