#include "levada/plan/text.h"

#include <gtest/gtest.h>

#include <vector>

namespace levada {
namespace {

TEST(TextTable, AlignsItsColumns) {
  TextTable table({"rank", "coords", "bytes"});
  table.add({"0", "dp0 tp0", "1 B"});
  table.add({"12", "dp1", "100 B"});
  EXPECT_EQ(table.to_string({true, false, true}),
            "rank  coords   bytes\n"
            "--------------------\n"
            "   0  dp0 tp0    1 B\n"
            "  12  dp1      100 B\n");
}

TEST(TextTable, CountsCharactersNotBytes) {
  TextTable table({"a", "b"});
  table.add({"\u00e9\u00e9", "x"});
  EXPECT_EQ(table.lines({}), (std::vector<std::string>{"a   b", "\u00e9\u00e9  x"}));
}

TEST(TextTable, PadsShortRows) {
  TextTable table({"a", "b"});
  table.add({"x"});
  EXPECT_EQ(table.lines({}), (std::vector<std::string>{"a  b", "x"}));
}

}  // namespace
}  // namespace levada
