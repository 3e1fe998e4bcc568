#include "levada/report/style.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <map>

#include "levada/report/numbers.h"

namespace levada::report {
namespace {

TEST(Numbers, HaveCommasByThousands) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(1638400), "1,638,400");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(with_commas(-123), "-123");
}

TEST(Numbers, AreRoundedToTheUnitThatFits) {
  EXPECT_EQ(in_thousands(7), "7.0");
  EXPECT_EQ(in_thousands(999.9), "999.9");
  EXPECT_EQ(in_thousands(999.99), "1.0 k");
  EXPECT_EQ(in_thousands(12.34e6), "12.3 M");
}

TEST(Numbers, ArePluralUnlessTheCountIsOne) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1024, "step"), "1,024 steps");
}

TEST(Numbers, ShowLongTimesInMinutes) {
  EXPECT_EQ(format_seconds(0.0032), "3.2 ms");
  EXPECT_EQ(format_seconds(125.2), "2:05 min");
}

TEST(Table, HasABoldHeadOnATerminal) {
  TextTable table({"a", "b"});
  table.add({"x", "10"});
  EXPECT_EQ(to_string(table, {false, true}, Style(true), " "), " \x1b[1ma   b\x1b[0m\n x  10\n");
}

TEST(Fact, HasItsNameInAColumn) {
  EXPECT_EQ(fact({}, "data", 5, "8 samples"), "  data   8 samples\n");
}

TEST(Bar, ShowsASliverForASmallNonzeroShare) {
  EXPECT_EQ(bar_of(0, 10), "");
  EXPECT_EQ(bar_of(1e-9, 10), "▏");
  EXPECT_EQ(bar_of(0.25, 10), "██▌");
  EXPECT_EQ(bar_of(1, 3), "███");
}

TEST(Style, HasNoColorsUnlessOnATerminal) {
  const auto nothing = [](const char*) -> const char* { return nullptr; };
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  EXPECT_FALSE(Style::of_descriptor(pipe_ends[1], nothing).colored());
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

TEST(Style, HasColorsOnATerminalUnlessTheEnvironmentForbidsThem) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  std::map<std::string, std::string> variables;
  const auto get = [&](const char* name) -> const char* {
    return variables.count(name) != 0 ? variables[name].c_str() : nullptr;
  };
  EXPECT_TRUE(Style::of_descriptor(terminal, get).colored());
  variables = {{"NO_COLOR", "1"}};
  EXPECT_FALSE(Style::of_descriptor(terminal, get).colored());
  variables = {{"TERM", "dumb"}};
  EXPECT_FALSE(Style::of_descriptor(terminal, get).colored());
  ::close(terminal);
}

}  // namespace
}  // namespace levada::report
