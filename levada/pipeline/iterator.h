// Iterators over items, and their cursors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "levada/pipeline/item.h"

namespace levada::pipeline {

/// Partition `index` of `count`. Partitions are disjoint and together cover all items.
struct Partition {
  std::int64_t index = 0;
  std::int64_t count = 1;
};

/// The parameters with which a process opens its copy of a stage. A pass of a pipeline is an epoch.
struct OpenContext {
  std::int64_t epoch = 0;
  /// The epoch of the pipeline and the pass number of each Repeat around the stage, the outermost first. Differs
  /// between any two passes of a run, and increases within an epoch.
  std::vector<std::int64_t> pass_number;
  std::uint64_t shared_seed = 0;  ///< seed of the epoch; the same in all processes of all ranks
  std::uint64_t own_seed = 0;     ///< seed of the epoch, rank and worker; the shared one in a dispatching process
  Partition among_ranks;          ///< the partition that a shard before or after a dispatch keeps
  Partition among_all;            ///< among all workers: the partition that a shard without a dispatch before it keeps
};

/// The position of an iterator. Portable and small: a Tree of numbers and bytes, so that it can be serialized and
/// inspected.
using Cursor = Tree;

/// Yields each item once. Used by one thread at a time. An exception from next() ends the iterator.
class Iterator {
 public:
  virtual ~Iterator() = default;

  /// Returns the next item, or nothing at the end and on every later call.
  virtual std::optional<Item> next() = 0;

  /// Drops the next `items` items and returns how many there were. Cheaper than next() if possible, for example if a
  /// source can seek.
  virtual std::int64_t skip(std::int64_t items) {
    std::int64_t passed = 0;
    while (passed < items && next()) ++passed;
    return passed;
  }

  /// Returns the position. An iterator that was opened the same way and has restored this position yields the items
  /// that this one would yield next.
  virtual Cursor save() const = 0;
  /// Called before the first next(). An iterator that has inputs must restore them here, not later. Throws
  /// InvalidArgument for a cursor of another pipeline; cursors are untrusted.
  virtual void restore(const Cursor& cursor) = 0;
};

using IteratorPtr = std::unique_ptr<Iterator>;

}  // namespace levada::pipeline
