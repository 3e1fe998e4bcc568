#include "levada/engine/membership.h"

#include <gtest/gtest.h>

#include <array>

namespace levada {
namespace {

constexpr std::uint64_t parent = 1, subgroup = 2;
constexpr std::array groups{subgroup, parent};

TEST(Membership, AssumesThatAnUnknownRankIsAMember) {
  EXPECT_FALSE(Membership().has_left(groups, 0));
}

TEST(Membership, RecordsWhichRankHasLeftAGroup) {
  Membership membership;
  membership.leave(subgroup, 1);
  EXPECT_TRUE(membership.has_left(groups, 1));
  EXPECT_FALSE(membership.has_left(groups, 2));
}

TEST(Membership, CountsARankThatLeavesTheParentAsHavingLeftTheSubgroup) {
  Membership membership;
  membership.leave(parent, 1);
  EXPECT_TRUE(membership.has_left(groups, 1));
}

TEST(Membership, KeepsARankInTheSubgroupIfItLeavesOnlyTheParent) {
  Membership membership;
  membership.stay(subgroup, 1);
  membership.leave(parent, 1);
  EXPECT_FALSE(membership.has_left(groups, 1));
  membership.leave(subgroup, 1);
  EXPECT_TRUE(membership.has_left(groups, 1));
}

TEST(Membership, ForgetsAGroupThatAllHaveLeftOnlyOnRequest) {
  Membership membership;
  membership.leave(subgroup, 1);
  membership.leave_oneself(std::array{subgroup}, 2);
  EXPECT_TRUE(membership.has_left_oneself(subgroup));
  membership.forget_if_over(subgroup);
  EXPECT_EQ(membership.size(), 1U) << "another rank is still in the group";
  membership.leave(subgroup, 2);
  EXPECT_TRUE(membership.has_left(groups, 2));
  membership.forget_if_over(subgroup);
  EXPECT_EQ(membership.size(), 0U);
}

TEST(Membership, RemembersARankThatLeftTheParentWhileThisRankIsInTheSubgroup) {
  Membership membership;
  membership.enter_oneself(groups);
  membership.leave(parent, 1);
  membership.leave_oneself(std::array{parent}, 1);
  EXPECT_TRUE(membership.has_left(groups, 1));
  membership.leave_oneself(groups, 0);
  EXPECT_EQ(membership.size(), 0U);
}

TEST(Membership, RemembersAGroupThatThisRankHasNotLeft) {
  Membership membership;
  membership.leave(subgroup, 1);
  membership.forget_if_over(subgroup);
  EXPECT_TRUE(membership.has_left(groups, 1));
}

}  // namespace
}  // namespace levada
