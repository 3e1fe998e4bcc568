// Iterators over items, and their cursors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "levada/pipeline/item.h"

namespace levada::pipeline {

/// Partition `index` of `count`. Partitions are disjoint and cover all items.
struct Partition {
  std::int64_t index = 0;
  std::int64_t count = 1;
};

/// The parameters with which a process opens its copy of a stage. A pass of a pipeline is an epoch.
struct OpenContext {
  std::int64_t epoch = 0;
  /// The epoch of the pipeline and the number of the pass of each Repeat around the stage, the outermost first. Differs
  /// between any two passes of a run, and increases within an epoch.
  std::vector<std::int64_t> pass_number;
  std::uint64_t shared_seed = 0;  ///< of the epoch; the same in all processes of all ranks
  std::uint64_t own_seed = 0;  ///< of the epoch, the rank and the worker; in a process that dispatches, the shared one
  Partition among_ranks;       ///< what a shard before a dispatch, and one after it, keeps
  Partition among_all;         ///< workers of all ranks: what a shard keeps where no dispatch stands before it
};

/// The position of an iterator: portable and small; a Tree of numbers and bytes, so that it can be written and
/// inspected.
using Cursor = Tree;

/// Yields items once. One thread at a time. An exception of next() ends the iterator.
class Iterator {
 public:
  virtual ~Iterator() = default;

  /// Returns the next item; nothing at the end, and from then on.
  virtual std::optional<Item> next() = 0;

  /// Drops the next `items` items and returns how many there were. Takes less work than next() if possible: a source
  /// that can seek does.
  virtual std::int64_t skip(std::int64_t items) {
    std::int64_t passed = 0;
    while (passed < items && next()) ++passed;
    return passed;
  }

  /// Returns the position. If an iterator that was opened in the same way restores it, it yields the items that this
  /// one would yield next.
  virtual Cursor save() const = 0;
  /// Called before the first next(). An iterator that has inputs restores them here, not later. Throws InvalidArgument
  /// for a cursor of another pipeline; cursors are untrusted.
  virtual void restore(const Cursor& cursor) = 0;
};

using IteratorPtr = std::unique_ptr<Iterator>;

}  // namespace levada::pipeline
