#include "levada/engine/ranks.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

namespace levada {
namespace {

constexpr std::array ranks{0, 1};
constexpr int many = 1000;

TEST(KeyDeriver, DerivesTheSameKeysInAnyOrderOfKinds) {
  KeyDeriver one(7), other(7);
  const auto a = one.subgroup(ranks, "a 1"), b = one.subgroup(ranks, "a 2"), a_again = one.subgroup(ranks, "a 1");
  EXPECT_EQ(other.subgroup(ranks, "a 2"), b);
  EXPECT_EQ(other.subgroup(ranks, "a 1"), a);
  EXPECT_EQ(other.subgroup(ranks, "a 1"), a_again);
  EXPECT_EQ(std::set({a, b, a_again}).size(), 3U);
}

TEST(KeyDeriver, NeverDerivesAKeyTwice) {
  KeyDeriver keys(7);
  std::set<std::uint64_t> made;
  const std::string names[] = {
      "", "a", "a ", "a 0", "a 1", "a 01", "1 a", "1 1", "11", "a 18446744073709551615", "a 18446744073709551616"};
  for (int time = 0; time < 3; ++time) {
    for (const std::string& name : names) made.insert(keys.subgroup(ranks, name));
    for (int number = 0; number < many; ++number) made.insert(keys.subgroup(ranks, "step " + std::to_string(number)));
  }
  EXPECT_EQ(made.size(), 3 * (std::size(names) + many));
}

TEST(KeyDeriver, StoresOneIntervalForConsecutivelyNumberedNames) {
  KeyDeriver keys(7);
  for (int number = 1; number <= many; ++number) {
    keys.subgroup(ranks, "reduce reduce-scatter " + std::to_string(number) + " of its group");
    keys.subgroup(ranks, "end of epoch " + std::to_string(number) + " of a Membership");
  }
  EXPECT_EQ(keys.num_kept(), 2U);
}

TEST(KeyDeriver, StoresOneCountPerName) {
  KeyDeriver keys(7);
  for (int time = 0; time < many; ++time) {
    keys.subgroup(ranks, "feed");
    keys.channel(0, ranks);
  }
  EXPECT_EQ(keys.num_kept(), 4U);
}

TEST(ChannelKind, IsTheSameForReceiversInAnyOrder) {
  constexpr std::array reversed{1, 0};
  EXPECT_EQ(channel_kind(0, ranks, 5), channel_kind(0, reversed, 5));
  EXPECT_NE(channel_kind(0, ranks, 5), channel_kind(1, ranks, 5));
  EXPECT_NE(channel_kind(0, ranks, 5), channel_kind(0, ranks, 6));
}

}  // namespace
}  // namespace levada
