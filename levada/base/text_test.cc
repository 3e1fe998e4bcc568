#include "levada/base/text.h"

#include <gtest/gtest.h>

namespace levada {
namespace {

TEST(Text, IsCutBetweenCharacters) {
  EXPECT_EQ(cut_text("caf\u00e9", 5), "caf\u00e9");
  EXPECT_EQ(cut_text("caf\u00e9", 4), "caf");
  EXPECT_EQ(cut_text("caf\u00e9", 3), "caf");
  EXPECT_EQ(cut_text("\U0001F600!", 3), "");
  EXPECT_EQ(cut_text("\U0001F600!", 4), "\U0001F600");
  EXPECT_EQ(cut_text("", 4), "");
}

TEST(Text, OfContinuationsAloneIsCutToNothing) {
  EXPECT_EQ(cut_text("\x80\x80\x80", 2), "");
}

}  // namespace
}  // namespace levada
