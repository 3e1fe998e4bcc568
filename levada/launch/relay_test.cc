#include "levada/launch/relay.h"

#include <gtest/gtest.h>

namespace levada::launch {
namespace {

TEST(LineCutter, ReturnsWholeLinesWithTheirEnds) {
  LineCutter lines;
  lines.append("one\ntwo\nthr");
  EXPECT_EQ(lines.take_lines(), "one\ntwo\n");
  EXPECT_EQ(lines.take_lines(), "");
  lines.append("ee");
  EXPECT_EQ(lines.take_lines(), "");
  lines.append("\n");
  EXPECT_EQ(lines.take_lines(), "three\n");
  EXPECT_TRUE(lines.is_empty());
}

TEST(LineCutter, JoinsPiecesOfALine) {
  LineCutter lines;
  std::string taken;
  for (const char byte : std::string("a line\r\nand\nanother")) {
    lines.append({&byte, 1});
    const auto part = lines.take_lines();
    EXPECT_TRUE(part.empty() || part.ends_with('\n')) << part;
    taken += part;
  }
  EXPECT_EQ(taken, "a line\r\nand\n");
  EXPECT_EQ(lines.take_rest(), "another");
  EXPECT_TRUE(lines.is_empty());
}

TEST(LineCutter, TreatsACarriageReturnWithoutANewlineAsALineEnd) {
  LineCutter lines;
  lines.append("10%\r");
  EXPECT_EQ(lines.take_lines(), "");
  lines.append("20%\r");
  EXPECT_EQ(lines.take_lines(), "10%\r");
  lines.append("\n");
  EXPECT_EQ(lines.take_lines(), "20%\r\n");
}

TEST(LineCutter, SplitsALineThatIsTooLong) {
  LineCutter lines;
  lines.append(std::string(LineCutter::max_bytes, 'x'));
  EXPECT_EQ(lines.take_lines(), "");
  lines.append("y");
  EXPECT_EQ(lines.take_lines().size(), LineCutter::max_bytes + 1);
  lines.append("z\n");
  EXPECT_EQ(lines.take_lines(), "z\n");
}

TEST(LinePrefixer, ShowsTheRankBeforeEachLine) {
  LinePrefixer prefixer;
  EXPECT_EQ(prefixer.show(2, 0, "one\n\ntwo\r\n"), "[2] one\n[2] \n[2] two\r\n");
  EXPECT_EQ(prefixer.show(10, 1, "three\n"), "[10] three\n");
}

TEST(LinePrefixer, ContinuesAnOpenLine) {
  LinePrefixer prefixer;
  EXPECT_EQ(prefixer.show(0, 0, "(Pdb) "), "[0] (Pdb) ");
  EXPECT_EQ(prefixer.show(0, 0, "more\n"), "more\n");
}

TEST(LinePrefixer, EndsAnOpenLineBeforeAnotherStreamsLine) {
  LinePrefixer prefixer;
  EXPECT_EQ(prefixer.show(0, 0, "(Pdb) "), "[0] (Pdb) ");
  EXPECT_EQ(prefixer.show(1, 0, "step\n"), "\n[1] step\n");
  EXPECT_EQ(prefixer.show(0, 0, "more\n"), "[0] more\n");
}

TEST(LinePrefixer, ClearsTheTextOfAProgressBar) {
  LinePrefixer prefixer;
  EXPECT_EQ(prefixer.show(0, 1, "\r"), "\r");
  EXPECT_EQ(prefixer.show(0, 1, "90%\r"), "[0] 90%\r");
  EXPECT_EQ(prefixer.show(1, 0, "step\n"), "[1] \x1b[Kstep\n");
  EXPECT_EQ(prefixer.show(1, 0, "step\n"), "[1] step\n");
}

}  // namespace
}  // namespace levada::launch
