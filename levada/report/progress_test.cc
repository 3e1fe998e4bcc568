#include "levada/report/progress.h"

#include <gtest/gtest.h>

#include "levada/base/text.h"

namespace levada::report {
namespace {

TEST(Progress, ShowsABarWithDoneAndRemaining) {
  const Progress half{"feeding", 50, 100, "50 of 100 steps", 10};
  EXPECT_EQ(render_progress(half, 80), "feeding [███████████████               ]  50%  50 of 100 steps, 0:10 left");
}

TEST(Progress, StaysShorterThanTheTerminalIsWide) {
  const Progress half{"feeding", 50, 100, "50 of 100 steps", 10};
  for (int columns = 1; columns < 120; ++columns) {
    EXPECT_LT(count_characters(render_progress(half, columns)), static_cast<std::size_t>(columns)) << columns;
  }
}

TEST(Progress, IsFullAtTheEnd) {
  const Progress done{"feeding", 7, 7, "7 of 7 steps", 3};
  EXPECT_EQ(render_progress(done, 80), "feeding [██████████████████████████████] 100%  7 of 7 steps");
}

TEST(Progress, DoesNotGoBeyondTheEnd) {
  const Progress beyond{"indexing", 9, 7, "9 B", 3};
  EXPECT_EQ(render_progress(beyond, 80), "indexing [██████████████████████████████] 100%  9 B");
}

TEST(Progress, ShowsThePositionIfTheEndIsUnknown) {
  EXPECT_EQ(render_progress({"feeding", 5, {}, "5 steps", 1}, 80), "feeding  5 steps");
}

TEST(ProgressLine, PrintsNothingIfStandardErrorIsNotATerminal) {
  ::testing::internal::CaptureStderr();
  {
    ProgressLine line("feeding");
    const auto later = Deadline::after(std::chrono::milliseconds(400));
    while (!later.expired()) line.update(1, 2, "1 of 2");
    EXPECT_FALSE(line.is_due());
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace levada::report
