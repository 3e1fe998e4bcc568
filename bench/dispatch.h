// A pipeline with a dispatching process and workers, measured end to end: from a source through dispatch, a stage in
// the workers, and back.
#pragma once

#include <cstdint>
#include <memory>

#include "levada/engine/engine.h"

namespace levada::bench {

struct DispatchOptions {
  int workers = 2;
  std::uint64_t item_bytes = 8;  ///< up to 8: an int; else a tensor of so many bytes
  double seconds = 2;            ///< that count
  std::int64_t prefetch = 10;    ///< messages that wait at an edge
  std::int64_t shuffle = 0;      ///< items in the buffer of a shuffle before they are dealt; 0: no shuffle
  bool record = false;           ///< what each process does when
};

struct DispatchResult {
  std::int64_t items = 0;
  double items_per_s = 0;
  double wakeups_per_item = 0;  ///< of all processes
  double copies_per_byte = 0;   ///< of the bytes of the items, from the source's to the consumer's, on all their way
};

/// Throws InvalidArgument.
void check(const DispatchOptions& options);
/// The consumer's, the dispatching process's, the workers'.
int ranks_of(const DispatchOptions& options);

/// Collective; returns the result on rank 0, the consumer. Throws EngineError if items end early or, without a
/// shuffle, arrive out of order.
DispatchResult measure(const std::shared_ptr<Engine>& engine, const DispatchOptions& options);

}  // namespace levada::bench
