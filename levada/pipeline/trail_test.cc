#include "levada/pipeline/trail.h"

#include <gtest/gtest.h>

#include "levada/base/error.h"

namespace levada::pipeline {
namespace {

/// Marks as a stream would that is that slow.
void walk(Trail& trail, std::int64_t items, Duration cost_of_item) {
  for (std::int64_t position = 0; position < items; ++position) {
    if (trail.due()) trail.mark(position, [&] { return Tree(position); });
    const auto until = Clock::now() + cost_of_item;
    while (Clock::now() < until) continue;
  }
}

TEST(Trail, FindsBackToEveryPositionThatIsKept) {
  Trail trail;
  walk(trail, 1000, {});
  for (std::int64_t position = 0; position < 1000; ++position) {
    const auto point = trail.at(position);
    EXPECT_GE(point.skip, 0);
    EXPECT_EQ(point.cursor, Tree(position - point.skip));
  }
}

TEST(Trail, RemembersEveryPositionOfASlowStream) {
  Trail trail;
  walk(trail, 50, std::chrono::milliseconds(1));
  std::int64_t exact = 0;
  for (std::int64_t position = 0; position < 50; ++position) exact += trail.at(position).skip == 0;
  EXPECT_GE(exact, 25);
}

TEST(Trail, ForgetsWhatIsNotKept) {
  Trail trail;
  trail.mark(3, [] { return Tree(3); });
  trail.mark(5, [] { return Tree(5); });
  EXPECT_THROW(trail.at(2), InvalidArgument);
  trail.keep_from(5);
  trail.mark(6, [] { return Tree(6); });
  EXPECT_THROW(trail.at(4), InvalidArgument);
  EXPECT_EQ(trail.at(5).cursor, Tree(5));
  EXPECT_EQ(trail.at(9).skip, 3);
}

TEST(Trail, ForgetsEveryOtherOfTooMany) {
  Trail trail;
  std::int64_t saved = 0;
  for (std::int64_t position = 0; position < 100000; ++position) {
    trail.mark(position, [&] { return Tree(++saved - 1); });
  }
  EXPECT_EQ(trail.at(0).cursor, Tree(0));
  EXPECT_LE(trail.at(99999).skip, 1);
  std::int64_t marks = 0;
  for (std::int64_t position = 0; position < 100000; ++position) marks += trail.at(position).skip == 0;
  EXPECT_LE(marks, 256);
}

}  // namespace
}  // namespace levada::pipeline
