#include "levada/corpus/mix_schedule.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace levada {
namespace {

/// Shares change at random samples; every source yields its samples in order, exactly up to its cap.
TEST(MixSchedule, ReturnsEachSampleOnceAcrossChangesOfWeights) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const auto sources = 1 + random() % 4;
    std::vector<MixPart> parts;
    std::int64_t size = 0;
    for (std::size_t k = 0; k < sources; ++k) {
      parts.push_back(
          {"s", 0.01 + static_cast<double>(random() % 100), 1 + static_cast<std::int64_t>(random() % 5000)});
      size += *parts.back().max_samples;
    }
    MixSchedule schedule(parts, trial);
    std::int64_t first = 0;
    for (auto changes = random() % 4; changes > 0; --changes) {
      first = std::min(size, first + static_cast<std::int64_t>(random() % 6000));
      std::vector<double> shares(sources);
      for (auto& share : shares) share = 0.01 + static_cast<double>(random() % 100);
      schedule.change(first, shares);
    }
    ASSERT_EQ(schedule.size(), size);
    std::vector<std::int64_t> given(sources);
    for (std::int64_t g = 0; g < size; ++g) {
      if (g % 997 == 0) {
        ASSERT_EQ(schedule.taken(g), given);
      }
      const auto [source, number] = schedule.at(g);
      ASSERT_EQ(number, given[source]++) << trial << " at " << g;
    }
    EXPECT_EQ(schedule.taken(size + 7), given);
    for (std::size_t k = 0; k < sources; ++k) EXPECT_EQ(given[k], parts[k].max_samples);
  }
}

TEST(MixSchedule, EqualsAMixUntilAChange) {
  const std::vector<MixPart> parts = {{"a", 3, 9000}, {"b", 1, {}}, {"c", 0.5, {}}};
  Mix mix(parts, 5);
  MixSchedule schedule(parts, 5);
  for (std::int64_t g = 0; g < 20'000; ++g) ASSERT_EQ(schedule.at(g), mix.at(g));
  EXPECT_EQ(schedule.size(), std::nullopt);
  schedule.change(20'000, {1, 1, 2});
  for (std::int64_t g = 0; g < 20'000; ++g) ASSERT_EQ(schedule.at(g), mix.at(g));
  const auto before = schedule.taken(20'000);
  EXPECT_EQ(before, mix.taken(20'000));
  const auto behind = schedule.taken(20'000 + 10 * Mix::block);
  EXPECT_EQ(behind[0], 9000);  // it had reached its cap before
  EXPECT_NEAR(static_cast<double>(behind[1] - before[1]), 10.0 * Mix::block / 3, 3);
  EXPECT_NEAR(static_cast<double>(behind[2] - before[2]), 20.0 * Mix::block / 3, 3);
}

}  // namespace
}  // namespace levada
