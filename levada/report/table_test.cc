#include "levada/report/table.h"

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

TEST(Numbers, TakeAnSUnlessThereIsOne) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1024, "step"), "1,024 steps");
}

TEST(Numbers, TellLongTimesInMinutes) {
  EXPECT_EQ(format_seconds(0.0032), "3.2 ms");
  EXPECT_EQ(format_seconds(125.2), "2:05 min");
}

TEST(Table, AlignsItsColumns) {
  Table table({{"rank", Table::Align::right}, {"coords", Table::Align::left}, {"bytes", Table::Align::right}});
  table.add_row({"0", "dp0 tp0", "1 B"});
  table.add_row({"12", "dp1", "100 B"});
  EXPECT_EQ(table.to_string({}, " "),
            " rank  coords   bytes\n"
            "    0  dp0 tp0    1 B\n"
            "   12  dp1      100 B\n");
}

TEST(Table, CountsCharactersNotBytes) {
  Table table({{"a", Table::Align::left}, {"b", Table::Align::left}});
  table.add_row({"\u00e9\u00e9", "x"});
  EXPECT_EQ(table.to_string(), "a   b\n\u00e9\u00e9  x\n");
}

TEST(Table, FillsUpAShortRow) {
  Table table({{"a", Table::Align::left}, {"b", Table::Align::left}});
  table.add_row({"x"});
  EXPECT_EQ(table.to_string(), "a  b\nx\n");
}

TEST(Table, HasABoldHeaderOnATerminal) {
  const Table table({{"a", Table::Align::left}});
  EXPECT_EQ(table.to_string(Style(true)), "\x1b[1ma\x1b[0m\n");
}

TEST(Style, HasNoColoursUnlessOnATerminal) {
  const auto nothing = [](const char*) -> const char* { return nullptr; };
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  EXPECT_FALSE(Style::of_descriptor(pipe_ends[1], nothing).coloured());
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

TEST(Style, HasColoursOnATerminalUnlessToldNotTo) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  std::map<std::string, std::string> variables;
  const auto get = [&](const char* name) -> const char* {
    return variables.count(name) != 0 ? variables[name].c_str() : nullptr;
  };
  EXPECT_TRUE(Style::of_descriptor(terminal, get).coloured());
  variables = {{"NO_COLOR", "1"}};
  EXPECT_FALSE(Style::of_descriptor(terminal, get).coloured());
  variables = {{"TERM", "dumb"}};
  EXPECT_FALSE(Style::of_descriptor(terminal, get).coloured());
  ::close(terminal);
}

}  // namespace
}  // namespace levada::report
