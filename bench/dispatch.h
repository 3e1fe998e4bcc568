// Measures a pipeline with a dispatching process and workers end to end: from a source through dispatch to a stage in
// the workers and back.
#pragma once

#include <cstdint>
#include <memory>

#include "levada/engine/engine.h"

namespace levada::bench {

struct DispatchOptions {
  int workers = 2;
  std::uint64_t item_bytes = 8;  ///< size of an item: up to 8, an int; else a tensor of this size
  double seconds = 2;            ///< measured time, after the warm-up
  std::int64_t prefetch = 10;    ///< messages in flight on each edge
  std::int64_t shuffle = 0;      ///< shuffle buffer before the dispatch, in items; 0 means no shuffle
  bool record = false;           ///< whether each process records a trace
};

struct DispatchResult {
  std::int64_t items = 0;
  double items_per_s = 0;
  double wakeups_per_item = 0;  ///< wake-ups of all processes, per item
  double copies_per_byte = 0;   ///< copied bytes per byte of items, from source to consumer
};

/// Throws InvalidArgument if an option is out of range.
void check(const DispatchOptions& options);
/// Returns the number of ranks: the consumer, the dispatching process and the workers.
int ranks_of(const DispatchOptions& options);

/// Collective. Returns the result on rank 0, the consumer. Throws EngineError if items end early or, without a shuffle,
/// arrive out of order.
DispatchResult measure(const std::shared_ptr<Engine>& engine, const DispatchOptions& options);

}  // namespace levada::bench
