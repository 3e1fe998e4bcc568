// What a process of a pipeline did and when: recorded while it happens, and carried to where it is shown.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"

namespace levada {

/// What a process of a pipeline spends time on.
enum class StageWork : std::uint8_t {
  item = 1,  ///< a stage makes items; what it waits for them is part of that
  input,     ///< a stage waits for what is before it, or the process for items of another one
  room,      ///< the process waits for one that has not received what it was sent
  memory,    ///< the process waits for memory to send in
  pack,      ///< items are made a message
  unpack,    ///< a message is made items
  idle,      ///< the process has nothing to do: no epoch is under way, all of it is sent, or it is paused
};

/// A stretch of time. Times are nanoseconds on the steady clock, which all processes of a host share.
struct StageSpan {
  StageWork work = StageWork::item;
  std::int32_t stage = -1;  ///< by number; -1: the process itself
  std::int32_t other = -1;  ///< the process that is waited for, by its rank; -1: none, or nobody knows
  std::uint32_t items = 0;
  std::int64_t begin_ns = 0;
  std::int64_t duration_ns = 0;
  std::int64_t waited_ns = 0;  ///< of an item's duration, what the stage waited for what is before it

  std::int64_t end_ns() const { return begin_ns + duration_ns; }
  bool operator==(const StageSpan&) const = default;
};

/// How many items a process had given on in its epoch at one moment.
struct StageSample {
  std::int64_t time_ns = 0;
  std::int64_t items = 0;
  bool operator==(const StageSample&) const = default;
};

/// What was recorded of one process. The steady clock's time is cut into windows, of which one of `stride` is there,
/// whole: the same ones in all processes of one stride.
struct StageTrace {
  static constexpr std::int64_t window_ns = std::int64_t{1} << 26;  ///< 67 ms

  /// Those of one stage do not overlap, but that its waits lie within its items; nor do those of the process itself.
  std::vector<StageSpan> spans;
  std::vector<StageSample> samples;
  std::int64_t stride = 1;
  std::uint64_t dropped = 0;  ///< spans and samples that were left out

  /// Leaves out what begins in windows that a multiple of `stride` would not have.
  void thin(std::int64_t to_stride);
  bool operator==(const StageTrace&) const = default;
};

/// Of several processes, in their order.
Bytes encode(std::span<const StageTrace> traces);
/// Reads bytes that may lie. Throws CorruptMessage. Stages and processes in it may be any.
std::vector<StageTrace> decode_stage_traces(ByteView bytes);

/// Records; any thread. Memory is bounded: when it is full, every other window that it has is left out, and from then
/// on every other window that comes.
class StageLog {
 public:
  static constexpr std::int64_t min_ns = 20'000;  ///< a shorter span that nothing extends is not recorded

  explicit StageLog(std::size_t stages, std::size_t max_events = 50'000);

  /// Extends the previous span where this one continues it after a short gap, so that small items show as one; else
  /// adds the span.
  void add(const StageSpan& span);
  /// At most one in 10 ms is kept.
  void add(const StageSample& sample);
  /// What has been recorded so far.
  StageTrace trace() const;

 private:
  void keep(const StageSpan& span);
  bool has_place(std::int64_t time_ns);

  std::size_t max_events_;
  mutable std::mutex mutex_;
  StageTrace trace_;
  std::vector<StageSpan> last_;  ///< that may still be prolonged, by stage: its items; the process's is the first
  std::int64_t sampled_ns_ = 0;
  std::int64_t window_ = 0;    ///< in which something was last kept
  std::size_t in_window_ = 0;  ///< how much of it
};

/// Records what the process itself does, from its making to its end; where there is no log, nothing.
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
