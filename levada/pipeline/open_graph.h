// A graph at work in one process.
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

/// What one stage has done in one process. Any thread may read while the stage's counts.
struct StageCounts {
  std::atomic<std::int64_t> items{0};      ///< given
  std::atomic<std::int64_t> skipped{0};    ///< left out because of OnError::skip
  std::atomic<std::int64_t> busy_ns{0};    ///< in its own work; estimated from some of the items
  std::atomic<std::int64_t> waited_ns{0};  ///< for what is before it
};
/// One a stage of the graph, by number; those that run elsewhere stay zero. Outlives the iterators that count.
using Counts = std::deque<StageCounts>;

/// What stages have at hand in a process.
struct RuntimeOptions {
  const ItemTraits& traits;
  OpenContext open_context;
  std::string process;  ///< for failures
  Counts& counts;
  std::shared_ptr<Engine> all_ranks;  ///< for FullSync; null where this is the only rank
  /// False: Prefetch is the identity, so that after each item it is known how many had been drawn from `instead`.
  bool prefetches = true;
  Duration timeout = std::chrono::minutes(30);  ///< for FullSync, of what another rank says
  /// Called now and then by the thread that asks for items, while it makes them or waits for them; what it throws ends
  /// the iterator.
  std::function<void()> poll = {};
  /// While it is set, Prefetch makes nothing ahead beyond the item at hand; may be null, outlives the iterators.
  const std::atomic<bool>* paused = nullptr;
  std::int64_t snapshot_every = 0;  ///< as ProcessOptions has it
  /// Counts the time that saving took on the caller's thread; may be null, outlives the iterators.
  std::atomic<Duration::rep>* snapshot_time = nullptr;
  /// Whose own work is being done, by number: set when a stage begins it. For explaining waits; may be null.
  std::atomic<int>* at = nullptr;
  StageLog* log = nullptr;  ///< records when stages make items and wait; may be null, outlives the iterators
};

/// The iterator of stage `end` and of what is before it, where each stage in `instead` is the iterator given. What a
/// stage's function throws comes out of next() as StageFailed, with what next() of the iterators in `instead` throws
/// left as it is; so does what is no std::exception, which on_error does not skip either. save() may cost time in
/// proportion to what stages hold, such as a Shuffle's buffer. Throws StageFailed for what cannot be opened.
IteratorPtr open(const Graph& graph, int end, const RuntimeOptions& runtime_options,
                 std::map<int, IteratorPtr> instead = {});

}  // namespace levada::pipeline
