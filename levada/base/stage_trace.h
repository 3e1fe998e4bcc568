// Records what a process of a pipeline does and when, and serializes the recording for the process that shows it.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"

namespace levada {

/// The activity on which a process of a pipeline spends time.
enum class StageWork : std::uint8_t {
  item = 1,  ///< a stage produces items, including the time in which it waits for input
  input,     ///< a stage waits for its input, or the process waits for items of another process
  room,      ///< the process waits for a receiver that still has unreceived items
  memory,    ///< the process waits for memory to send in
  pack,      ///< items are packed into a message
  unpack,    ///< a message is unpacked into items
  idle,      ///< the process has nothing to do: no epoch is running, everything is sent, or it is paused
};

/// A span of time. Times are nanoseconds on the steady clock, which all processes of a host share.
struct StageSpan {
  StageWork work = StageWork::item;
  std::int32_t stage = -1;  ///< number of the stage; -1: the process itself
  std::int32_t other = -1;  ///< rank of the process waited for; -1: none or unknown
  std::uint32_t items = 0;
  std::int64_t begin_ns = 0;
  std::int64_t duration_ns = 0;
  std::int64_t waited_ns = 0;  ///< for an item: the part of the duration that the stage waited for its input

  std::int64_t end_ns() const { return begin_ns + duration_ns; }
  bool operator==(const StageSpan&) const = default;
};

/// The number of items that a process had output in its epoch at one moment.
struct StageSample {
  std::int64_t time_ns = 0;
  std::int64_t items = 0;
  bool operator==(const StageSample&) const = default;
};

/// The recording of one process. The steady clock is divided into windows. Every `stride`-th window is kept, complete;
/// all processes with the same stride keep the same windows.
struct StageTrace {
  static constexpr std::int64_t window_ns = std::int64_t{1} << 26;  ///< 67 ms

  /// Spans of one stage do not overlap, except that its waits are inside its items. Spans of the process itself do not
  /// overlap either.
  std::vector<StageSpan> spans;
  std::vector<StageSample> samples;
  std::int64_t stride = 1;
  std::uint64_t dropped = 0;  ///< spans and samples that were left out

  /// Drops everything that begins in a window that is not a multiple of `to_stride`.
  void thin(std::int64_t to_stride);
  bool operator==(const StageTrace&) const = default;
};

/// Encodes the traces of several processes, in their order.
Bytes encode(std::span<const StageTrace> traces);
/// Reads untrusted bytes. Throws CorruptMessage. Stage and process numbers are not checked against any pipeline.
std::vector<StageTrace> decode_stage_traces(ByteView bytes);

/// Records spans and samples in bounded memory. When the log is full, it drops every other window that it holds, and
/// from then on records only every other one. Thread-safe.
class StageLog {
 public:
  static constexpr std::int64_t min_ns = 20'000;  ///< minimum duration of a recorded span, after joining

  explicit StageLog(std::size_t stages, std::size_t max_events = 50'000);

  /// Extends the previous span if this one continues it after a short gap, so that small items appear as one. Otherwise
  /// adds the span.
  void add(const StageSpan& span);
  /// Adds a sample; keeps at most one every 10 ms.
  void add(const StageSample& sample);
  /// Returns everything recorded so far.
  StageTrace trace() const;

 private:
  void keep(const StageSpan& span);
  bool has_place(std::int64_t time_ns);

  std::size_t max_events_;
  mutable std::mutex mutex_;
  StageTrace trace_;
  std::vector<StageSpan> last_;  ///< spans that may still be extended: the process's first, then one per stage
  std::int64_t sampled_ns_ = 0;
  std::int64_t window_ = 0;    ///< the window of the last event kept
  std::size_t in_window_ = 0;  ///< number of events kept in it
};

/// Records an activity of the process from construction to destruction. Does nothing without a log.
class StageScope {
 public:
  explicit StageScope(StageLog* log, StageWork work, int other = -1);
  ~StageScope();
  StageScope(const StageScope&) = delete;
  StageScope& operator=(const StageScope&) = delete;

 private:
  StageLog* log_;
  StageSpan span_;
};

}  // namespace levada
