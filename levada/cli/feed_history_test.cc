#include "levada/cli/feed_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/engine/collect.h"
#include "levada/engine/joined/hosts_testing.h"

namespace levada::cli {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

constexpr std::int64_t day = std::int64_t{24} * 3600 * 1'000'000'000;

Deadline limit() {
  return Deadline::after(std::chrono::seconds(60));
}

/// Returns the shifts on rank 0 if each host's clock is five days ahead of the previous host's. The ranks in `left`
/// leave before the measurement.
std::vector<std::int64_t> shifts_of(int ranks, int ranks_a_host, const std::vector<int>& left = {}) {
  std::vector<std::int64_t> shifts;
  const auto body = [&](const std::shared_ptr<Engine>& engine, joined::test::Job&) {
    const int rank = engine->info().rank, host = rank / ranks_a_host;
    if (std::find(left.begin(), left.end(), rank) != left.end()) return;
    const auto mine = clock_shifts(*engine, limit(), nullptr, [&] { return read_clock() + 5 * day * host; });
    if (rank == 0) shifts = mine;
    else EXPECT_THAT(mine, IsEmpty());
  };
  EXPECT_EQ(joined::test::run_ranks(ranks, {.ranks_a_host = ranks_a_host}, body), "");
  return shifts;
}

/// Matches within a second, which is far more than a round trip between threads.
auto about(std::int64_t ns) {
  return AllOf(Ge(ns - 1'000'000'000), Le(ns + 1'000'000'000));
}

TEST(ClockShifts, AreMeasuredForEachHost) {
  EXPECT_THAT(shifts_of(5, 2), ElementsAre(0, 0, about(-5 * day), about(-5 * day), about(-10 * day)));
  EXPECT_THAT(shifts_of(3, 1), ElementsAre(0, about(-5 * day), about(-10 * day)));
}

TEST(ClockShifts, AreZeroOnOneHost) {
  EXPECT_THAT(shifts_of(3, 3), AllOf(SizeIs(3), Each(0)));
}

TEST(ClockShifts, UseARankThatHasNotLeft) {
  EXPECT_THAT(shifts_of(4, 2, {2}), ElementsAre(0, 0, about(-5 * day), about(-5 * day)));
  EXPECT_THAT(shifts_of(4, 2, {2, 3}), AllOf(SizeIs(4), Each(0)));
}

TEST(Gather, CollectsTheBytesOfEveryRankOnRankZero) {
  std::vector<RankMessage> all;
  const auto body = [&](const std::shared_ptr<Engine>& engine, joined::test::Job&) {
    const int rank = engine->info().rank;
    if (rank == 3) return;
    auto mine = gather(*engine, Bytes(static_cast<std::size_t>(rank) + 1), limit());
    if (rank == 0) all = std::move(mine);
    else EXPECT_THAT(mine, IsEmpty());
  };
  ASSERT_EQ(joined::test::run_ranks(4, {.ranks_a_host = 2}, body), "");
  EXPECT_THAT(
      all,
      ElementsAre(::testing::Field(&RankMessage::bytes, SizeIs(1)), ::testing::Field(&RankMessage::bytes, SizeIs(2)),
                  ::testing::Field(&RankMessage::bytes, SizeIs(3)), ::testing::Field(&RankMessage::bytes, IsEmpty())));
  EXPECT_THAT(all, Each(::testing::Field(&RankMessage::clock_shift_ns, about(0))));
}

}  // namespace
}  // namespace levada::cli
