#include "levada/corpus/split.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "levada/base/fault_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;
using Proportions = std::vector<double>;

TEST(Split, DividesAllDocumentsByTheirShares) {
  for (const auto& split : {Proportions{98, 1, 1}, {1, 1, 1}, {969, 30, 1}, {0.7, 0.2, 0.1}, {1, 0, 3}}) {
    double end = 0;
    for (std::size_t i = 0; i < split.size(); ++i) {
      if (split[i] == 0) continue;
      const auto share = part_of_split(split, std::vector{"train", "valid", "test"}[i]);
      EXPECT_EQ(share.begin, end);
      end = share.end;
    }
    for (const double all : {1.0, 7.0, 1000.0, 123456789.0}) EXPECT_EQ(std::lrint(end * all), all);
  }
  EXPECT_EQ(part_of_split({}, "train").end, 1);
}

TEST(Split, ErrorsNameTheCause) {
  const auto fault = [](const Proportions& split, std::string_view part) {
    return fault_of([&] { part_of_split(split, part); });
  };
  EXPECT_THAT(fault({98, 1, 1}, "dev"), HasSubstr("the part of a split is dev; it must be train, valid or test"));
  EXPECT_THAT(fault({98, 2}, "test"), HasSubstr("the split 98,2 leaves nothing for test: give it a share"));
  EXPECT_THAT(fault({}, "valid"), HasSubstr("the split 1 leaves nothing for valid"));
  EXPECT_THAT(fault({0, 0, 0}, "train"), HasSubstr("the split 0,0,0 leaves nothing for train"));
  EXPECT_THAT(fault({1, 1, 1, 1}, "train"),
              HasSubstr("a split takes at most three proportions, of train, valid and test, got 4"));
  for (const double bad : {-1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(fault({bad, 1}, "valid"), HasSubstr(fmt::format("must be finite and not negative, got {},1", bad)));
  }
}

}  // namespace
}  // namespace levada
