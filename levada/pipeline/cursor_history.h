// Finding back to any position of a stream that is not long ago.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "levada/base/deadline.h"
#include "levada/pipeline/stream.h"

namespace levada::pipeline {

/// Remembers a stream's cursor at some of its positions, so that any later one is found again by restoring the nearest
/// before it and dropping items. Cursors are taken as often as costs some percent of the stream's time: at every item
/// of a slow one. Bounded: of many, every other is forgotten. One thread marks; any may ask.
class CursorHistory {
 public:
  /// Called once an item: whether it is time to mark where the stream stands.
  bool due() { return ++since_ >= every_; }
  /// `save` gives the stream's cursor at `position`. The first mark says where the history begins.
  void mark(std::int64_t position, const std::function<Cursor()>& save);

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
  std::int64_t since_ = 0, every_ = 1;
  Clock::time_point marked_ = Clock::time_point::min();
};

}  // namespace levada::pipeline
