#include "levada/pipeline/cursors.h"

#include <gtest/gtest.h>

#include "levada/base/error.h"

namespace levada::pipeline {
namespace {

/// Marks like an iterator with that cost per item.
void walk(SnapshotLog& history, std::int64_t items, Duration cost_of_item) {
  for (std::int64_t position = 0; position < items; ++position) {
    if (history.due()) history.mark(position, [&] { return Tree(position); });
    const auto until = Clock::now() + cost_of_item;
    while (Clock::now() < until) continue;
  }
}

TEST(SnapshotLog, RestoresEveryKeptPosition) {
  SnapshotLog history;
  walk(history, 1000, {});
  for (std::int64_t position = 0; position < 1000; ++position) {
    const auto point = history.at(position);
    EXPECT_GE(point.skip, 0);
    EXPECT_EQ(point.cursor, Tree(position - point.skip));
  }
}

TEST(SnapshotLog, RemembersEveryPositionOfASlowIterator) {
  SnapshotLog history;
  walk(history, 50, std::chrono::milliseconds(1));
  std::int64_t exact = 0;
  for (std::int64_t position = 0; position < 50; ++position) exact += history.at(position).skip == 0;
  EXPECT_GE(exact, 25);
}

TEST(SnapshotLog, DropsPositionsThatAreNoLongerNeeded) {
  SnapshotLog history;
  history.mark(3, [] { return Tree(3); });
  history.mark(5, [] { return Tree(5); });
  EXPECT_THROW(history.at(2), InvalidArgument);
  history.keep_from(5);
  history.mark(6, [] { return Tree(6); });
  EXPECT_THROW(history.at(4), InvalidArgument);
  EXPECT_EQ(history.at(5).cursor, Tree(5));
  EXPECT_EQ(history.at(9).skip, 3);
}

TEST(SnapshotLog, DropsEveryOtherCursorBeyondItsLimit) {
  SnapshotLog history;
  std::int64_t saved = 0;
  for (std::int64_t position = 0; position < 100000; ++position) {
    history.mark(position, [&] { return Tree(++saved - 1); });
  }
  EXPECT_EQ(history.at(0).cursor, Tree(0));
  EXPECT_LE(history.at(99999).skip, 1);
  std::int64_t marks = 0;
  for (std::int64_t position = 0; position < 100000; ++position) marks += history.at(position).skip == 0;
  EXPECT_LE(marks, 256);
}

TEST(SnapshotLog, KeepsABoundedNumberOfBytes) {
  SnapshotLog history;
  for (std::int64_t position = 0; position < 300; ++position) {
    history.mark(position, [&] { return Tree::list({Tree(position), Tree(Bytes(std::size_t{1} << 20))}); });
    EXPECT_LE(history.bytes(), SnapshotLog::max_bytes);
  }
  for (std::int64_t position = 0; position < 300; ++position) {
    const auto point = history.at(position);
    EXPECT_EQ(point.cursor.container().children[0], Tree(position - point.skip));
  }
}

TEST(SnapshotLog, BoundsTheBytesOfCursorsOfOtherProcesses) {
  // As several workers forward the snapshots of one dispatching process: each in order, but not all together.
  constexpr std::int64_t count = 400;
  SnapshotLog history;
  history.add(0, Tree(Bytes{}));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto position = 1 + (i ^ 3);
    history.add(position, Tree::list({Tree(position), Tree(Bytes(std::size_t{1} << 20))}));
    EXPECT_LE(history.bytes(), SnapshotLog::max_bytes);
  }
  EXPECT_EQ(history.at(0).skip, 0);
  for (std::int64_t position = 1; position <= count; ++position) {
    const auto point = history.at(position);
    if (point.skip == position) continue;  // the first one
    EXPECT_EQ(point.cursor.container().children[0], Tree(position - point.skip));
  }
  history.keep_from(count);
  history.add(count + 1, Tree(Bytes{}));
  EXPECT_LE(history.bytes(), std::size_t{1} << 20);
  history.clear();
  EXPECT_EQ(history.bytes(), 0u);
}

TEST(SnapshotLog, KeepsTwoCursorsOfAnySize) {
  SnapshotLog history;
  for (std::int64_t position = 0; position < 10; ++position) {
    history.mark(position, [&] { return Tree(Bytes(SnapshotLog::max_bytes + 1)); });
    EXPECT_EQ(history.at(position).skip, 0);
    EXPECT_EQ(history.at(0).skip, 0);
    EXPECT_LE(history.bytes(), 2 * (SnapshotLog::max_bytes + 1));
  }
}

}  // namespace
}  // namespace levada::pipeline
