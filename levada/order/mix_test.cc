#include "levada/order/mix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "levada/base/error.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Returns how many of the samples [first, first + count) are from each source.
std::vector<std::int64_t> counts_of(Mix& mix, std::size_t sources, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> counts(sources);
  for (auto g = first; g < first + count; ++g) ++counts[mix.at(g).source];
  return counts;
}

std::string fault_of_mix(const std::vector<MixPart>& parts) {
  try {
    Mix(parts, 0);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no fault";
}

TEST(Mix, TakesItsShareOfEveryBlockFromEachSource) {
  Mix mix({{"a", 0.7}, {"b", 0.2}, {"c", 0.1}}, 3);
  EXPECT_EQ(mix.size(), std::nullopt);
  for (const std::int64_t block : {0, 1, 2, 1'000'000'000}) {
    const auto counts = counts_of(mix, 3, block * Mix::block, Mix::block);
    EXPECT_NEAR(static_cast<double>(counts[0]), 2867.2, 1.5) << block;
    EXPECT_NEAR(static_cast<double>(counts[1]), 819.2, 1.5) << block;
    EXPECT_NEAR(static_cast<double>(counts[2]), 409.6, 1.5) << block;
  }
}

/// Checks after certain numbers of samples that every source has provided its share of them.
void check_shares(const std::vector<MixPart>& parts, const std::vector<std::int64_t>& numbers) {
  double all = 0;
  for (const auto& part : parts) all += part.share;
  const Mix mix(parts, 3);
  for (const auto g : numbers) {
    const auto taken = mix.taken(g);
    ASSERT_EQ(std::accumulate(taken.begin(), taken.end(), std::int64_t{0}), g);
    for (std::size_t k = 0; k < parts.size(); ++k) {
      const auto share = parts[k].share / all;
      const auto exact = share * static_cast<double>(g);
      // More than one sample, because shares are multiples of 2^-36 and the mean of all phases is not exact.
      ASSERT_NEAR(static_cast<double>(taken[k]), exact, 2 + share * 8 + exact / 20'000) << parts[k].name << " of " << g;
    }
  }
}

TEST(Mix, KeepsTheSharesOfThousandsOfSourcesAndOfTinyOnes) {
  const std::vector<std::int64_t> numbers = {Mix::block, 10 * Mix::block, 1000 * Mix::block, 10'000'000 * Mix::block};
  std::vector<MixPart> equal(5000, {"equal", 1, {}});
  check_shares(equal, numbers);
  check_shares({{"most", 1, {}}, {"millionth", 1e-6, {}}, {"three millionths", 3e-6, {}}}, numbers);
  std::vector<MixPart> languages = {{"english", 0.5, {}}};
  for (int i = 1; i <= 1000; ++i) languages.push_back({std::to_string(i), 0.5 / (i * 7.5), {}});
  check_shares(languages, numbers);
}

TEST(Mix, KeepsTheOrderOfEachSource) {
  Mix mix({{"a", 1}, {"b", 2}, {"c", 3, 5000}}, 3);
  std::vector<std::int64_t> next(3);
  for (std::int64_t g = 0; g < 10 * Mix::block; ++g) {
    const auto sample = mix.at(g);
    ASSERT_EQ(sample.number, next[sample.source]++) << g;
    if (g % 997 != 0) continue;
    ASSERT_EQ(mix.taken(g + 1), next) << g;
  }
}

TEST(Mix, ReturnsTheSameSampleInAnyOrderOfAccess) {
  const std::vector<MixPart> parts = {{"a", 1}, {"b", 2, 9000}, {"c", 3}};
  Mix forward(parts, 7), backward(parts, 7);
  std::vector<MixedSample> samples;
  for (std::int64_t g = 0; g < 30'000; ++g) samples.push_back(forward.at(g));
  for (std::int64_t g = 30'000; g-- > 0;) ASSERT_EQ(backward.at(g), samples[static_cast<std::size_t>(g)]) << g;
}

TEST(Mix, ShufflesEachBlockDifferentlyAndBySeed) {
  Mix mix({{"a", 1}, {"b", 1}}, 7), other({{"a", 1}, {"b", 1}}, 8);
  const auto owners = [](Mix& of, std::int64_t block) {
    std::vector<std::size_t> all;
    for (std::int64_t slot = 0; slot < Mix::block; ++slot) all.push_back(of.at(block * Mix::block + slot).source);
    return all;
  };
  EXPECT_NE(owners(mix, 0), owners(mix, 1));
  EXPECT_NE(owners(mix, 0), owners(other, 0));
}

TEST(Mix, StopsASourceAtItsCapAndRedistributesItsShare) {
  Mix mix({{"a", 1}, {"b", 1, 5000}, {"c", 2}}, 1);
  EXPECT_EQ(mix.size(), std::nullopt);
  const std::int64_t many = 20 * Mix::block;
  EXPECT_EQ(counts_of(mix, 3, 0, many)[1], 5000);
  // 1024 per block for four blocks, about 904 in the fifth, then none.
  EXPECT_NEAR(static_cast<double>(counts_of(mix, 3, 0, Mix::block)[1]), 1024, 1);
  EXPECT_NEAR(static_cast<double>(counts_of(mix, 3, 4 * Mix::block, Mix::block)[1]), 5000 - 4 * 1024, 1);
  const auto later = counts_of(mix, 3, 5 * Mix::block, Mix::block);
  EXPECT_NEAR(static_cast<double>(later[0]), 1365.3, 1.5);
  EXPECT_EQ(later[1], 0);
  EXPECT_EQ(mix.taken(many)[1], 5000);
}

TEST(Mix, EndsWhenAllSourcesHaveReachedTheirCaps) {
  for (const std::int64_t most : {1, 1000, 4095, 4096, 4097, 20'000}) {
    Mix mix({{"a", 5, most}, {"b", 1, 700}}, 1);
    ASSERT_EQ(mix.size(), most + 700);
    EXPECT_THAT(counts_of(mix, 2, 0, *mix.size()), ElementsAre(most, 700));
    EXPECT_THAT(mix.taken(*mix.size()), ElementsAre(most, 700));
    EXPECT_THAT(mix.taken(*mix.size() + 100'000), ElementsAre(most, 700));
  }
}

/// Returns parts with caps that often end in the same block, or exactly at the end of a block.
std::vector<MixPart> random_parts(std::mt19937& random, bool endless) {
  const auto below = [&](std::int64_t most) { return static_cast<std::int64_t>(random() % most); };
  std::vector<MixPart> parts(1 + below(3) * below(40));
  const auto scale = std::vector<std::int64_t>{1, 100, 1024, 1000}[below(4)];
  for (auto& part : parts) {
    part.share = below(2) == 0 ? 1 : 1 + static_cast<double>(below(1000)) / 50;
    part.max_samples = scale * (1 + below(below(2) == 0 ? 5 : 20));
  }
  if (endless) parts.front().max_samples = {};
  return parts;
}

/// Reads the mix block by block until all caps are surely reached, and checks each block against the contract.
void check_mix(const std::vector<MixPart>& parts, bool endless) {
  std::int64_t caps = 0;
  double shares = 0;
  for (const auto& part : parts) caps += part.max_samples.value_or(0), shares += part.share;
  Mix mix(parts, 5);
  ASSERT_EQ(mix.size(), endless ? std::nullopt : std::optional(caps));
  const auto end = endless ? (2 + caps) * Mix::block : caps;
  std::vector<std::int64_t> given(parts.size());
  for (std::int64_t g = 0; g < end; ++g) {
    if (g % Mix::block == 0 && endless) {
      // After that, only the source without a cap is left.
      const auto capped = std::accumulate(given.begin() + 1, given.end(), std::int64_t{0});
      if (capped == caps) break;
    }
    const auto sample = mix.at(g);
    ASSERT_EQ(sample.number, given[sample.source]++) << "sample " << g;
    if (g % Mix::block == Mix::block - 1 || g == end - 1) {
      ASSERT_EQ(mix.taken(g + 1), given) << "sample " << g;
    }
  }
  for (std::size_t k = endless ? 1 : 0; k < parts.size(); ++k)
    ASSERT_EQ(given[k], parts[k].max_samples) << "source " << k;
}

TEST(Mix, TakesExactlyItsCapFromEverySourceForAnyCapsAndWeights) {
  std::mt19937 random(17);
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(trial);
    const bool endless = trial % 2 == 0;
    ASSERT_NO_FATAL_FAILURE(check_mix(random_parts(random, endless), endless));
  }
}

TEST(Mix, EndsSeveralSourcesInOneBlock) {
  Mix mix({{"a", 1, 1000}, {"b", 1, 1024}, {"c", 2, 10'000}}, 3);
  EXPECT_EQ(mix.size(), 12'024);
  EXPECT_THAT(mix.taken(2 * Mix::block), ElementsAre(1000, 1024, 6168));
  EXPECT_THAT(counts_of(mix, 3, 0, 12'024), ElementsAre(1000, 1024, 10'000));
}

TEST(Mix, DoesNotStarveSmallSourcesWhenOthersEnd) {
  std::vector<MixPart> parts(8, {"small", 1e-6, 50});
  parts.push_back({"a", 0.4, 5000});
  parts.push_back({"b", 0.3, 7001});
  parts.push_back({"c", 0.3, 4096});
  ASSERT_NO_FATAL_FAILURE(check_mix(parts, false));
}

TEST(Mix, SeeksToADistantSample) {
  Mix mix({{"a", 1}, {"b", 3, 1'000'000'000'000}}, 1);
  const std::int64_t far = 4'000'000'000'000;
  EXPECT_EQ(mix.taken(far)[1], 1'000'000'000'000);
  EXPECT_EQ(mix.at(far).source, 0);
  EXPECT_EQ(mix.at(far).number, far - 1'000'000'000'000);
}

TEST(Mix, RejectsInvalidShares) {
  EXPECT_THAT(fault_of_mix({}), HasSubstr("needs a source"));
  EXPECT_THAT(fault_of_mix({{"web", 0}}), HasSubstr("the weight of web is 0; it must be a number above zero"));
  EXPECT_THAT(fault_of_mix({{"web", -1}}), HasSubstr("is -1;"));
  EXPECT_THAT(fault_of_mix({{"web", std::nan("")}}), HasSubstr("is nan;"));
  EXPECT_THAT(fault_of_mix({{"web", std::numeric_limits<double>::infinity()}}), HasSubstr("is inf;"));
  EXPECT_THAT(fault_of_mix({{"code", 1}, {"web", 1e-10}}), HasSubstr("the weight of web is 1e-10 of all weights"));
  EXPECT_THAT(fault_of_mix({{"web", 1, 0}}), HasSubstr("the source web may give at most 0 samples"));
  EXPECT_THAT(fault_of_mix({{"web", 1, Mix::max_samples + 1}}), HasSubstr("that must be 1 to 4503599627370496"));
}

}  // namespace
}  // namespace levada
