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

TEST(Text, OfOnlyContinuationBytesIsCutToNothing) {
  EXPECT_EQ(cut_text("\x80\x80\x80", 2), "");
}

TEST(Text, ThatIsPrintableIsUnchanged) {
  EXPECT_EQ(printable("a b \"c\" \\ caf\u00e9 \u4e2d \U0001F600"), "a b \"c\" \\ caf\u00e9 \u4e2d \U0001F600");
  EXPECT_EQ(printable(""), "");
}

TEST(Text, CannotControlATerminalOncePrintable) {
  EXPECT_EQ(printable("\x1b]0;x\x07\x1b[2J"), "\\x1b]0;x\\x07\\x1b[2J");
  EXPECT_EQ(printable("a\nb\rc\td\x7f"), "a\\nb\\rc\\td\\x7f");
  EXPECT_EQ(printable("\u009b2J"), "\\x9b2J");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("a\u202eb\u2028c\u2066"), "a\\u202eb\\u2028c\\u2066");
}

TEST(Text, ThatIsNotUtf8IsShownAsBytes) {
  EXPECT_EQ(printable("caf\xe9"), "caf\\xe9");
  EXPECT_EQ(printable("\x9b"
                      "2J"),
            "\\x9b2J");
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b");           // overlong encoding
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // half of a surrogate pair
  EXPECT_EQ(printable("\xe4\xb8"), "\\xe4\\xb8");
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(Text, KeepsItsLines) {
  EXPECT_EQ(printable_lines("a\n\tb\x1b\r"), "a\n\tb\\x1b\\r");
}

}  // namespace
}  // namespace levada
