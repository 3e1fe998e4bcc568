#include "levada/base/deadline.h"

#include <gtest/gtest.h>

#include "levada/base/error.h"

namespace levada {
namespace {

using std::chrono_literals::operator""us;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using std::chrono_literals::operator""min;
using std::chrono_literals::operator""h;

TEST(ParseDuration, ReadsEveryUnit) {
  EXPECT_EQ(parse_duration("250us"), 250us);
  EXPECT_EQ(parse_duration("200us"), 200us);
  EXPECT_EQ(parse_duration("500ms"), 500ms);
  EXPECT_EQ(parse_duration("30s"), 30s);
  EXPECT_EQ(parse_duration("2m"), 2min);
  EXPECT_EQ(parse_duration("1h"), 1h);
  EXPECT_EQ(parse_duration("1.5s"), 1500ms);
  EXPECT_EQ(parse_duration("0"), 0s);
}

TEST(ParseDuration, ReadsABareNumberAsSeconds) {
  EXPECT_EQ(parse_duration("30"), 30s);
}

TEST(ParseDuration, RejectsInvalidDurations) {
  for (const auto* text : {"", "s", "-1s", "1 s", "1sec", "one", "nan", "inf", "1e300h", "s1", "1s "}) {
    EXPECT_THROW(parse_duration(text), InvalidArgument) << text;
  }
}

TEST(FormatDuration, PicksTheUnit) {
  EXPECT_EQ(format_duration(30s), "30.0 s");
  EXPECT_EQ(format_duration(12500us), "12.5 ms");
  EXPECT_EQ(format_duration(7us), "7 us");
  EXPECT_EQ(format_duration(0s), "0 us");
}

TEST(Deadline, NeverExpires) {
  EXPECT_TRUE(Deadline::never().is_never());
  EXPECT_FALSE(Deadline::never().expired());
  EXPECT_EQ(Deadline::never().remaining(), Duration::max());
}

TEST(Deadline, OfNowHasPassed) {
  EXPECT_TRUE(Deadline::now().expired());
  EXPECT_EQ(Deadline::now().remaining(), Duration::zero());
}

TEST(Deadline, RemainingTimeNeverExceedsTheDuration) {
  const auto deadline = Deadline::after(1h);
  EXPECT_FALSE(deadline.expired());
  EXPECT_LE(deadline.remaining(), 1h);
  EXPECT_GT(deadline.remaining(), 59min);
  EXPECT_TRUE(Deadline::after(-1s).expired());
}

TEST(Deadline, BeyondTheClockNeverExpires) {
  EXPECT_TRUE(Deadline::after(Duration::max()).is_never());
}

}  // namespace
}  // namespace levada
