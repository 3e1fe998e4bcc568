#include "levada/report/length_histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace levada::report {
namespace {

using ::testing::ElementsAre;
using Row = LengthHistogram::Row;

LengthHistogram histogram_of(const std::vector<std::int64_t>& lengths) {
  LengthHistogram histogram;
  for (const auto length : lengths) histogram.add(length);
  return histogram;
}

TEST(LengthHistogram, ExtremesAndMeanAreExact) {
  const auto histogram = histogram_of({7, 1, 1000, 0});
  EXPECT_EQ(histogram.shortest(), 0);
  EXPECT_EQ(histogram.longest(), 1000);
  EXPECT_EQ(histogram.mean(), 252);
  EXPECT_EQ(histogram_of({}).mean(), 0);
  EXPECT_TRUE(histogram_of({}).rows(10).empty());
}

TEST(LengthHistogram, QuantilesAreApproximate) {
  std::vector<std::int64_t> lengths(100'000);
  std::iota(lengths.begin(), lengths.end(), 1);
  const auto histogram = histogram_of(lengths);
  for (const double share : {0.01, 0.25, 0.5, 0.9, 1.0}) {
    EXPECT_NEAR(static_cast<double>(histogram.quantile(share)), share * 100'000, share * 100'000 / 32);
  }
  EXPECT_EQ(histogram_of({5}).quantile(0.5), 5);
  EXPECT_EQ(histogram_of({3, 3, 3, 30}).quantile(0.5), 3);
  EXPECT_EQ(histogram_of({100'001}).quantile(0.5), 100'001);
}

TEST(LengthHistogram, CountsEveryLengthInItsRow) {
  std::vector<std::int64_t> lengths;
  for (int bit = 0; bit < 63; ++bit) {
    for (const std::int64_t more : {-1, 0, 1}) lengths.push_back((std::int64_t{1} << bit) + more);
  }
  lengths.push_back(INT64_MAX);
  for (const std::size_t most : {2, 3, 8, 20, 100, 1000}) {
    const auto rows = histogram_of(lengths).rows(most);
    EXPECT_LE(rows.size(), most);
    std::int64_t counted = 0;
    for (const auto& row : rows) {
      counted += row.count;
      const auto in_row = [&](std::int64_t length) { return length >= row.from && length <= row.to; };
      EXPECT_EQ(row.count, std::count_if(lengths.begin(), lengths.end(), in_row)) << row.from << " to " << row.to;
    }
    EXPECT_EQ(counted, static_cast<std::int64_t>(lengths.size()));
  }
}

TEST(LengthHistogram, UsesTheFinestRowsThatFit) {
  EXPECT_THAT(histogram_of({5, 5}).rows(10), ElementsAre(Row{5, 5, 2, 10}));
  EXPECT_THAT(histogram_of({100, 100}).rows(10), ElementsAre(Row{100, 100, 2, 200}));
  EXPECT_THAT(histogram_of({64, 100, 127}).rows(8).size(), 8);
  EXPECT_THAT(histogram_of({64, 100, 127}).rows(2), ElementsAre(Row{64, 95, 1, 64}, Row{96, 127, 2, 227}));
  EXPECT_THAT(histogram_of({1, 9}).rows(4),
              ElementsAre(Row{1, 1, 1, 1}, Row{2, 3, 0, 0}, Row{4, 7, 0, 0}, Row{8, 9, 1, 9}));
}

TEST(LengthHistogram, DrawsBarsInEighths) {
  EXPECT_EQ(histogram_of({1, 1, 1, 1, 3}).to_string("documents", {}, "  "),
            "  length  documents  of tokens\n"
            "       1          4      57.1%  ████████████████████████████████\n"
            "       2          0       0.0%\n"
            "       3          1      42.9%  ████████\n");
}

}  // namespace
}  // namespace levada::report
