// Reading the parts of a cursor, and finding back to positions that lie behind.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/pipeline/iterator.h"

namespace levada::pipeline {

/// The largest number of items that a cursor may have: the sum of two of them, and one times the number of workers, are
/// numbers too.
inline constexpr std::int64_t max_count = std::int64_t{1} << 50;

/// A cursor as it travels.
Bytes pack_cursor(const Cursor& cursor);
/// Throws CorruptMessage.
Cursor unpack_cursor(ByteView bytes);

/// Reads the dict of one stage. Borrows it.
class CursorFields {
 public:
  /// Throws InvalidArgument unless it is of the stage of that name.
  CursorFields(const Tree& fields, std::string_view stage);

  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Throws InvalidArgument that names the stage and what is missing or amiss; so do the others.
  const Tree& at(std::string_view name) const;
  std::int64_t count(std::string_view name) const;  ///< from 0 to max_count
  std::int64_t integer(std::string_view name) const;
  const Bytes& bytes(std::string_view name) const;
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  const Tree* find(std::string_view name) const;

  const Tree& fields_;
  std::string stage_;
};

/// The children of a list. Throws InvalidArgument, naming the stage.
const std::vector<Tree>& list_in_cursor(const Tree& tree, std::string_view stage);

/// Remembers an iterator's cursor at some of its positions, so that any later one is found again by restoring the
/// nearest before it and dropping items. Cursors are taken as often as costs one percent of the iterator's time: at
/// every item of a slow one. Bounded: of many, every other is forgotten. One thread marks; any may ask.
class SnapshotLog {
 public:
  /// `every`: marks are due so many items apart, whatever they cost. 0: by their cost.
  explicit SnapshotLog(std::int64_t every = 0) : is_fixed_(every > 0), every_(std::max<std::int64_t>(every, 1)) {}

  /// Called once an item: whether it is time to mark where the iterator stands.
  bool due() { return ++since_ >= every_; }
  /// `save` gives the iterator's cursor at `position`. The first mark says where the history begins. Returns how long
  /// it took since `begin`.
  Duration mark(std::int64_t position, const std::function<Cursor()>& save, Clock::time_point begin = Clock::now());

  struct Point {
    Cursor cursor;
    std::int64_t skip = 0;  ///< items to drop after restoring it
  };
  /// `position` lies at or behind the first mark that is still needed.
  Point at(std::int64_t position) const;
  /// No position before this will be asked for.
  void keep_from(std::int64_t position) { keep_from_.store(position, std::memory_order_relaxed); }

 private:
  struct Mark {
    std::int64_t position;
    Cursor cursor;
  };
  void drop_old();
  void space_marks(std::int64_t items, Duration since, Duration cost);

  mutable std::mutex mutex_;
  std::deque<Mark> marks_;
  std::atomic<std::int64_t> keep_from_{0};
  bool is_fixed_;
  std::int64_t since_ = 0, every_;
  Clock::time_point marked_ = Clock::time_point::min();
};

}  // namespace levada::pipeline
