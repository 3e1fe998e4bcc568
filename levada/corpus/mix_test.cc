#include "levada/corpus/mix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "levada/base/error.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// How many samples of each source are among [first, first + count).
std::vector<std::int64_t> counts_of(Mix& mix, std::size_t sources, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> counts(sources);
  for (auto g = first; g < first + count; ++g) ++counts[mix.at(g).source];
  return counts;
}

std::string fault_of(std::vector<MixPart> parts) {
  try {
    Mix(std::move(parts), 0);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no fault";
}

TEST(Mix, GivesEachSourceItsShareOfEveryBlock) {
  Mix mix({{"a", 0.7}, {"b", 0.2}, {"c", 0.1}}, 3);
  EXPECT_EQ(mix.size(), std::nullopt);
  for (const std::int64_t block : {0, 1, 2, 1'000'000'000}) {
    // 2867.2, 819.2 and 409.6 slots: the last has the largest remainder.
    EXPECT_THAT(counts_of(mix, 3, block * Mix::block, Mix::block), ElementsAre(2867, 819, 410));
  }
}

TEST(Mix, TakesTheSamplesOfASourceInTheirOrder) {
  Mix mix({{"a", 1}, {"b", 2}, {"c", 3, 5000}}, 3);
  std::vector<std::int64_t> next(3);
  for (std::int64_t g = 0; g < 10 * Mix::block; ++g) {
    const auto sample = mix.at(g);
    ASSERT_EQ(sample.number, next[sample.source]++) << g;
    if (g % 997 != 0) continue;
    ASSERT_EQ(mix.taken(g + 1), next) << g;
  }
}

TEST(Mix, NamesTheSameSampleFromWhereverItIsAsked) {
  const std::vector<MixPart> parts = {{"a", 1}, {"b", 2, 9000}, {"c", 3}};
  Mix forward(parts, 7), backward(parts, 7);
  std::vector<MixedSample> samples;
  for (std::int64_t g = 0; g < 30'000; ++g) samples.push_back(forward.at(g));
  for (std::int64_t g = 30'000; g-- > 0;) ASSERT_EQ(backward.at(g), samples[static_cast<std::size_t>(g)]) << g;
}

TEST(Mix, OrdersTheSlotsOfEachBlockAnewAndBySeed) {
  Mix mix({{"a", 1}, {"b", 1}}, 7), other({{"a", 1}, {"b", 1}}, 8);
  const auto owners = [](Mix& of, std::int64_t block) {
    std::vector<std::size_t> all;
    for (std::int64_t slot = 0; slot < Mix::block; ++slot) all.push_back(of.at(block * Mix::block + slot).source);
    return all;
  };
  EXPECT_NE(owners(mix, 0), owners(mix, 1));
  EXPECT_NE(owners(mix, 0), owners(other, 0));
}

TEST(Mix, StopsASourceAtItsCapAndSharesItsSlots) {
  Mix mix({{"a", 1}, {"b", 1, 5000}, {"c", 2}}, 1);
  EXPECT_EQ(mix.size(), std::nullopt);
  const std::int64_t many = 20 * Mix::block;
  EXPECT_EQ(counts_of(mix, 3, 0, many)[1], 5000);
  // 1024 a block for four blocks, 904 in the fifth, then none.
  EXPECT_THAT(counts_of(mix, 3, 0, Mix::block), ElementsAre(1024, 1024, 2048));
  EXPECT_EQ(counts_of(mix, 3, 4 * Mix::block, Mix::block)[1], 5000 - 4 * 1024);
  EXPECT_THAT(counts_of(mix, 3, 5 * Mix::block, Mix::block), ElementsAre(1365, 0, 2731));
  EXPECT_EQ(mix.taken(many)[1], 5000);
}

TEST(Mix, EndsWhenAllHaveGivenTheirMost) {
  for (const std::int64_t most : {1, 1000, 4095, 4096, 4097, 20'000}) {
    Mix mix({{"a", 5, most}, {"b", 1, 700}}, 1);
    ASSERT_EQ(mix.size(), most + 700);
    EXPECT_THAT(counts_of(mix, 2, 0, *mix.size()), ElementsAre(most, 700));
    EXPECT_THAT(mix.taken(*mix.size()), ElementsAre(most, 700));
    EXPECT_THAT(mix.taken(*mix.size() + 100'000), ElementsAre(most, 700));
  }
}

TEST(Mix, ReachesAnySampleAtOnce) {
  Mix mix({{"a", 1}, {"b", 3, 1'000'000'000'000}}, 1);
  const std::int64_t far = 4'000'000'000'000;
  EXPECT_EQ(mix.taken(far)[1], 1'000'000'000'000);
  EXPECT_EQ(mix.at(far).source, 0);
  EXPECT_EQ(mix.at(far).number, far - 1'000'000'000'000);
}

TEST(Mix, RefusesSharesThatAreNone) {
  EXPECT_THAT(fault_of({}), HasSubstr("needs a source"));
  EXPECT_THAT(fault_of({{"web", 0}}), HasSubstr("the weight of web is 0; it must be a number above zero"));
  EXPECT_THAT(fault_of({{"web", -1}}), HasSubstr("is -1;"));
  EXPECT_THAT(fault_of({{"web", std::nan("")}}), HasSubstr("is nan;"));
  EXPECT_THAT(fault_of({{"web", std::numeric_limits<double>::infinity()}}), HasSubstr("is inf;"));
  EXPECT_THAT(fault_of({{"code", 1}, {"web", 1e-5}}), HasSubstr("the weight of web gives it none of the 4096 samples"));
  EXPECT_THAT(fault_of(std::vector<MixPart>(1025)), HasSubstr("at most 1024"));
}

}  // namespace
}  // namespace levada
