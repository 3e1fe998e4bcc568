// Reads the fields of a cursor, and restores earlier positions.
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

/// The largest item count allowed in a cursor. The sum of two counts, and the product of a count and the number of
/// workers, do not overflow.
inline constexpr std::int64_t max_count = std::int64_t{1} << 50;

/// Serializes a cursor.
Bytes pack_cursor(const Cursor& cursor);
/// Deserializes a cursor. Throws CorruptMessage.
Cursor unpack_cursor(ByteView bytes);

/// Returns the position in a cursor that is a single number. Throws InvalidArgument unless it is from 0 to `size`.
std::int64_t position_in(const Cursor& cursor, std::int64_t size = max_count);

/// Throws InvalidArgument because the state refers to a position past the `items` items in `where`, such as a process.
[[noreturn]] void throw_past_end(std::int64_t items, std::string_view where = "all");

/// Reads the dict of one stage, which it borrows.
class CursorFields {
 public:
  /// Throws InvalidArgument unless the dict belongs to the stage named `stage`.
  CursorFields(const Tree& fields, std::string_view stage);

  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// These functions throw InvalidArgument that names the stage and the missing or invalid field.
  const Tree& at(std::string_view name) const;
  std::int64_t count(std::string_view name) const;  ///< from 0 to max_count
  std::int64_t integer(std::string_view name) const;
  const Bytes& bytes(std::string_view name) const;
  [[noreturn]] void fail(std::string_view what) const;

 private:
  const Tree* find(std::string_view name) const;

  const Tree& fields_;
  std::string stage_;
};

/// Returns the children of a list. Throws InvalidArgument, naming the stage, if it is not a list.
const std::vector<Tree>& list_in_cursor(const Tree& tree, std::string_view stage);

/// Keeps cursors of an iterator at some of its positions. Any later position is reached by restoring the nearest
/// earlier cursor and dropping items. Saving takes at most about one percent of the iterator's time, so a slow iterator
/// saves a cursor at every item. The log keeps at most `max_cursors` cursors with at most `max_bytes` bytes in total,
/// unless two cursors already exceed that. Beyond either limit it drops every other cursor, but never the first or the
/// last. One thread adds; any thread may read.
class SnapshotLog {
 public:
  static constexpr std::size_t max_cursors = 256;
  static constexpr std::size_t max_bytes = std::size_t{16} << 20;

  /// `every`: number of items between marks, regardless of their cost; 0 derives it from their cost.
  explicit SnapshotLog(std::int64_t every = 0) : is_fixed_(every > 0), every_(std::max<std::int64_t>(every, 1)) {}

  /// Called once per item. Returns whether a mark is due.
  bool due() { return ++since_ >= every_; }
  /// Saves the cursor that `save` returns for `position`. The first mark is the earliest position of the log. Returns
  /// the time since `begin`.
  Duration mark(std::int64_t position, const std::function<Cursor()>& save, Clock::time_point begin = Clock::now());

  /// Adds a cursor that another process saved. Such cursors may be added in any order.
  void add(std::int64_t position, Cursor cursor);
  void clear();

  struct Point {
    Cursor cursor;
    std::int64_t skip = 0;  ///< items to drop after restoring it
  };
  /// Returns how to reach `position`, which is not before the first mark that is still needed.
  Point at(std::int64_t position) const;
  /// Drops marks that only earlier positions need.
  void keep_from(std::int64_t position) { keep_from_.store(position, std::memory_order_relaxed); }
  /// Returns the total size of the kept cursors in bytes.
  std::size_t bytes() const;

 private:
  struct Mark {
    std::int64_t position;
    Cursor cursor;
    std::size_t bytes;
  };
  void insert(std::int64_t position, Cursor cursor);
  void drop_old();
  void drop_every_other();
  std::size_t sum_bytes() const;
  void space_marks(std::int64_t items, Duration since, Duration cost);

  mutable std::mutex mutex_;
  std::deque<Mark> marks_;
  std::atomic<std::int64_t> keep_from_{0};
  bool is_fixed_;
  std::int64_t since_ = 0, every_;
  Clock::time_point marked_ = Clock::time_point::min();
};

}  // namespace levada::pipeline
