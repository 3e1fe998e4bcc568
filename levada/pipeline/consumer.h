// The consumer of a pipeline: the end that yields its items.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "levada/base/stage_trace.h"
#include "levada/pipeline/open_graph.h"
#include "levada/pipeline/placement.h"
#include "levada/pipeline/show.h"
#include "levada/pipeline/worker_main.h"

namespace levada::pipeline {

class ConsumerEndpoint;

/// The consumer. Used by one thread at a time, except that stats(), traces(), paused() and one of pause() and resume()
/// may be called concurrently on other threads. A forked child, which lacks its threads, must not use or destroy it.
class Consumer {
 public:
  explicit Consumer(Process process);
  Consumer(const Consumer&) = delete;
  Consumer& operator=(const Consumer&) = delete;
  /// Calls shutdown() with a short grace period.
  ~Consumer();

  /// Begins epoch `epoch`, at its first item or at `cursor`, which may come from a run with a different number of
  /// workers if the placement is one-to-one. Drops items of an earlier epoch, and clears any limit and pause. Throws
  /// InvalidArgument for a cursor of another pipeline.
  void reset(std::int64_t epoch, const std::optional<Cursor>& cursor = {}) { begin(epoch, cursor, 0); }
  /// Begins epoch `epoch` after its first `items` items. The skipped items are not made if the stages are one-to-one
  /// and the source can seek. Throws InvalidArgument if the epoch has fewer items; if workers make them, next() throws
  /// it instead.
  void reset_after(std::int64_t epoch, std::int64_t items) { begin(epoch, {}, items); }
  /// Returns the next item, or nothing at the end of the epoch, at a limit, and while paused. Items keep the order of
  /// the inputs that they were made from, regardless of which worker made them. Throws StageFailed in place of a failed
  /// item; PeerLost, naming the process, within a second of its end; and Timeout, naming the process, its current
  /// stage, and since when it has been there.
  std::optional<Item> next();
  /// Returns whether next() returned nothing at the end of the epoch, rather than at a limit, a pause or a failure.
  bool ended() const { return ended_; }
  /// Lets next() return at most `items` more items until resume(). Processes still make items ahead.
  void limit(std::int64_t items);
  /// Stops all processes from making items ahead, except the item that each Prefetch is making, until resume(). The
  /// pipeline is paused even if this throws, for example because a process does not answer.
  void pause();
  void resume();
  bool paused() const { return paused_; }
  /// Returns the cursor after the last item that next() returned. Throws InvalidArgument if lost_place().
  Cursor save() const;
  /// Returns whether an exception has propagated through stages in this process during this epoch. Those stages may
  /// have pulled inputs whose items next() has not returned, so no cursor can describe the position. Stages in other
  /// processes keep their position.
  bool lost_place() const;
  /// Ends the loops of all processes. Returns false if one did not acknowledge within `grace`.
  bool shutdown(Duration grace);

  Stats stats() const;
  /// Returns a trace of each process's activity, in the order of stats().processes. A trace is empty without
  /// ProcessOptions::record, and if its process does not answer. `other` in a span is an index into stats().processes.
  /// Like stats(), it may be called after shutdown().
  std::vector<StageTrace> traces() const;

 private:
  std::optional<Item> next_of_stages();
  void begin(std::int64_t epoch, const std::optional<Cursor>& cursor, std::int64_t behind);
  const Tree& stages_of(const Cursor& cursor) const;
  void end_iterator();
  void count_time();
  Duration time_spent() const;

  Process process_;
  Placement placement_;
  Counts counts_;
  std::unique_ptr<StageLog> log_;
  std::unique_ptr<ConsumerEndpoint> endpoint_;
  IteratorPtr iterator_;
  mutable std::mutex timing_;               ///< guards begun_ and spent_
  std::optional<Clock::time_point> begun_;  ///< start of the current epoch
  Duration spent_{};                        ///< time in earlier epochs
  std::int64_t epoch_ = 0;
  std::int64_t num_outputs_ = 0;  ///< in this epoch, if there are no workers and it is recorded
  std::atomic<std::int64_t> left_{std::numeric_limits<std::int64_t>::max()};  ///< items until a limit
  std::atomic<bool> paused_{false};
  bool ended_ = false;
  bool failed_ = false;
  bool over_ = false;
};

}  // namespace levada::pipeline
