// Opens a graph in one process.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "levada/base/stage_trace.h"
#include "levada/engine/engine.h"
#include "levada/pipeline/failure.h"
#include "levada/pipeline/graph.h"

namespace levada::pipeline {

/// The counters of one stage in one process. Written by the stage's thread; readable on any thread.
struct StageCounts {
  std::atomic<std::int64_t> items{0};      ///< items yielded
  std::atomic<std::int64_t> skipped{0};    ///< items dropped because of OnError::skip
  std::atomic<std::int64_t> busy_ns{0};    ///< time in its own work; extrapolated from some of the items
  std::atomic<std::int64_t> waited_ns{0};  ///< time spent waiting for its inputs
};
/// One per stage of the graph, by number; stages of other processes stay at zero. Must outlive the iterators.
using Counts = std::deque<StageCounts>;

/// The environment in which the stages of a process run.
struct RuntimeOptions {
  const ItemTraits& traits;
  OpenContext open_context;
  std::string process;  ///< name of the process, for failures
  Counts& counts;
  std::shared_ptr<Engine> all_ranks;  ///< for FullSync; null if this is the only rank
  std::string name_among_ranks = {};  ///< as in Process
  /// If false, Prefetch has no effect, so that after each item it is known how many items `instead` has yielded.
  bool prefetches = true;
  Duration timeout = std::chrono::minutes(30);  ///< for FullSync: limit on the wait for another rank's report
  /// Called periodically by the thread that calls next(), while it makes items or waits for them. Its exceptions end
  /// the iterator.
  std::function<void()> poll = {};
  /// If true, the number of items that `instead` has yielded determines the place of an item among all processes. In
  /// that case a failure of the input precedes the items that a stage holds, since they would have later places without
  /// the failure.
  bool places_by_input = false;
  /// Returns whether an iterator of `instead` would wait for another process. A stage must not pull ahead then: the
  /// other processes may need the items that it holds before they send more. May be empty: no iterator waits.
  std::function<bool()> would_wait = {};
  /// While it is true, Prefetch makes no items ahead beyond the one in progress. May be null; must outlive the
  /// iterators.
  const std::atomic<bool>* paused = nullptr;
  std::int64_t snapshot_every = 0;  ///< as in ProcessOptions
  /// Counts the time that saving takes on the caller's thread. May be null; must outlive the iterators.
  std::atomic<Duration::rep>* snapshot_time = nullptr;
  /// Set to the number of each stage when it begins to work, to explain waits. May be null.
  std::atomic<int>* at = nullptr;
  /// Records when stages make items and wait. May be null; must outlive the iterators.
  StageLog* log = nullptr;
};

/// Opens the iterator of stage `end` and of the stages before it; each stage in `instead` is replaced by the given
/// iterator. next() throws an exception of a stage's function as StageFailed. Exceptions of the iterators in `instead`
/// propagate unchanged, and so do exceptions that are not a std::exception, which on_error does not skip either. save()
/// may take time proportional to the number of items that stages hold, such as a Shuffle's buffer. Throws StageFailed
/// if a stage cannot be opened.
IteratorPtr open(const Graph& graph, int end, const RuntimeOptions& runtime_options,
                 std::map<int, IteratorPtr> instead = {});

}  // namespace levada::pipeline
