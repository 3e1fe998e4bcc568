#include "levada/engine/attendance.h"

#include <gtest/gtest.h>

#include <array>

namespace levada {
namespace {

constexpr std::uint64_t whole = 1, part = 2;
constexpr std::array groups{part, whole};  // the part was made from the whole

TEST(Attendance, HoldsNobodyToHaveLeftOfWhomItHasHeardNothing) {
  const Attendance attendance;
  EXPECT_FALSE(attendance.has_left(groups, 0));
}

TEST(Attendance, KnowsWhoHasLeftAGroup) {
  Attendance attendance;
  attendance.enter(part, 1);
  EXPECT_FALSE(attendance.has_left(groups, 1));
  attendance.leave(part, 1);
  EXPECT_TRUE(attendance.has_left(groups, 1));
  EXPECT_FALSE(attendance.has_left(groups, 2));
}

TEST(Attendance, HoldsWhoeverLeftTheWholeWithoutEnteringThePartToHaveLeftThat) {
  Attendance attendance;
  attendance.leave(whole, 1);
  EXPECT_TRUE(attendance.has_left(groups, 1));
}

TEST(Attendance, KeepsInThePartWhoeverEnteredItAndLeftTheWhole) {
  Attendance attendance;
  attendance.enter(part, 1);
  attendance.leave(whole, 1);
  EXPECT_FALSE(attendance.has_left(groups, 1));
}

TEST(Attendance, ForgetsAGroupThatAllHaveLeftOnlyWhenItIsAskedTo) {
  Attendance attendance;
  attendance.leave(part, 1);
  attendance.leave_oneself(std::array{part}, 2);
  attendance.forget_if_over(part);
  EXPECT_EQ(attendance.size(), 1U);  // one other is still in it
  attendance.leave(part, 2);
  EXPECT_TRUE(attendance.has_left(groups, 2));
  attendance.forget_if_over(part);
  EXPECT_EQ(attendance.size(), 0U);
}

TEST(Attendance, RemembersWhoLeftTheWholeAsLongAsThisRankIsInThePart) {
  Attendance attendance;
  attendance.enter_oneself(groups);
  attendance.leave(whole, 1);
  attendance.leave_oneself(std::array{whole}, 1);
  EXPECT_TRUE(attendance.has_left(groups, 1));
  attendance.leave_oneself(groups, 0);
  EXPECT_EQ(attendance.size(), 0U);
}

TEST(Attendance, RemembersAGroupThatThisRankHasNotLeft) {
  Attendance attendance;
  attendance.leave(part, 1);
  attendance.forget_if_over(part);
  EXPECT_TRUE(attendance.has_left(groups, 1));
}

}  // namespace
}  // namespace levada
