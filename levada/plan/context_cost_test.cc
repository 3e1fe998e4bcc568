#include "levada/plan/context_cost.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "levada/base/error.h"

namespace levada {
namespace {

constexpr ContextCost simple{.linear = 10,
                             .quadratic = 1,
                             .exchange_in_host = 3,
                             .exchange_between = 30,
                             .hop = 100,
                             .start = 1000,
                             .ranks_per_host = 4};

TEST(ContextCost, PadsASequenceToTwoChunksPerRank) {
  EXPECT_EQ(padded_for(9, 1), 9);
  EXPECT_EQ(padded_for(9, 2), 12);
  EXPECT_EQ(padded_for(12, 2), 12);
  EXPECT_EQ(padded_for(0, 8), 0);
  EXPECT_EQ(padded_for(1, 8), 16);
}

TEST(ContextCost, ASequenceOnOneRankOnlyComputes) {
  EXPECT_EQ(sequence_time(9, 1, simple), 10 * 9 + 9 * 9);
}

TEST(ContextCost, RanksShareTheWorkOfThePaddedSequence) {
  // 100 positions on 2 ranks: attention (5,000) hides sending (3 * 50).
  EXPECT_EQ(sequence_time(99, 2, simple), 10 * 100 / 2 + 100 * 100 / 2);
}

TEST(ContextCost, CommunicationHidesTheAttentionOfShortSequences) {
  // 8 positions on 4 ranks of a host: 8 * 8 / 4 is less than 3 * 8 * 3 / 4. Over two hosts sending is slower.
  EXPECT_EQ(sequence_time(8, 4, simple), 10 * 8 / 4 + 18);
  EXPECT_EQ(sequence_time(16, 8, simple), 10 * 16 / 8 + 30 * 16 * 7 / 8);
}

TEST(ContextCost, AMicroBatchHidesItsCommunicationBehindAllOfItsAttention) {
  const std::array<std::int64_t, 2> lengths{8, 96};
  EXPECT_EQ(micro_time(lengths, 4, simple), 1000 + 3 * 100 + 10 * 104 / 4 + (8 * 8 + 96 * 96) / 4);
  EXPECT_LT(micro_time(lengths, 4, simple) - 1300, sequence_time(8, 4, simple) + sequence_time(96, 4, simple));
}

TEST(ContextCost, RejectsTimesThatOverflow) {
  EXPECT_THROW(sequence_time(std::int64_t{1} << 39, 1, {}), InvalidArgument);
  EXPECT_NO_THROW(sequence_time(std::int64_t{1} << 30, 1, {}));
}

}  // namespace
}  // namespace levada
