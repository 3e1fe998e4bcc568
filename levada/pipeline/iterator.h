// Items one after the other, and where one stands among them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "levada/pipeline/item.h"

namespace levada::pipeline {

/// A part of what there is: part `index` of `count`. Parts are disjoint and make up the whole.
struct Partition {
  std::int64_t index = 0;
  std::int64_t count = 1;
};

/// What the copy of a stage in one process is opened with. A pass of a pipeline is an epoch.
struct OpenContext {
  std::int64_t epoch = 0;
  std::uint64_t shared_seed = 0;  ///< of the epoch; the same in all processes of all ranks
  std::uint64_t own_seed = 0;     ///< of the epoch, the rank and the worker; in the dispatching process the shared one
  Partition among_ranks;          ///< what a shard before a dispatch, and one after it, keeps
  Partition among_all;            ///< workers of all ranks: what a shard keeps where no dispatch stands before it
};

/// Where an iterator stands: portable and small; a Tree of numbers and bytes, so that it can be written and looked at.
using Cursor = Tree;

/// Items, once. One thread at a time. What next() throws ends the iterator.
class Iterator {
 public:
  virtual ~Iterator() = default;

  /// The next item; empty at the end, and from then on.
  virtual std::optional<Item> next() = 0;

  /// Passes over the next `items`; how many of them there were. With less work than next() takes where that can be
  /// saved: a source that can seek does.
  virtual std::int64_t skip(std::int64_t items) {
    std::int64_t passed = 0;
    while (passed < items && next()) ++passed;
    return passed;
  }

  /// Where it stands. An iterator opened the same way that is given this by restore() gives the items that this one
  /// would give next.
  virtual Cursor save() const = 0;
  /// Before the first next(). Throws InvalidArgument for a cursor of something else; it may lie.
  virtual void restore(const Cursor& cursor) = 0;
};

using IteratorPtr = std::unique_ptr<Iterator>;

}  // namespace levada::pipeline
