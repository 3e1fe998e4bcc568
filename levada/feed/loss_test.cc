#include "levada/feed/loss.h"

#include <gtest/gtest.h>

#include <future>
#include <latch>

#include "levada/engine/inproc/inproc.h"
#include "levada/feed/feed.h"
#include "levada/feed/source_testing.h"

namespace levada {
namespace {

using feed_protocol::Ended;
using feed_protocol::Follower;
using feed_protocol::Left;

constexpr Duration soon = {};
constexpr Duration later = loss_timeout;

/// Returns a rank that has taken 5 batches.
Follower at_five() {
  Follower follower(false);
  for (int step = 0; step < 5; ++step) follower.advance(true);
  return follower;
}

FeedPosition position(std::int64_t step) {
  return {.round = step, .step = step};
}

std::string text_of(const std::optional<FeedLoss>& loss) {
  return loss ? loss->text : "none";
}

TEST(FeedLoss, ADepartureWithAnExceptionIsALossImmediatelyForRanksAheadAndLaterForOthers) {
  for (const std::int64_t step : {4, 5, 7}) {
    auto follower = at_five();
    follower.apply(Left{3, position(step), "ValueError: bad\nsample"});
    const auto text =
        "rank 3 raised ValueError at step " + std::to_string(step) + " (bad\\nsample); this rank (1) is in step 5";
    EXPECT_EQ(text_of(find_loss(follower, {}, soon, 1)), step < 5 ? text : "none");
    EXPECT_EQ(text_of(find_loss(follower, {}, later, 1)), text);
  }
}

TEST(FeedLoss, ADepartureWithoutAReasonIsALossOnlyForRanksAhead) {
  for (const std::int64_t step : {4, 5, 7}) {
    auto follower = at_five();
    follower.apply(Left{3, position(step), ""});
    EXPECT_EQ(text_of(find_loss(follower, {}, soon, 1)), "none");
    EXPECT_EQ(text_of(find_loss(follower, {}, later, 1)),
              step < 5 ? "rank 3 left its loop at step 4; this rank (1) is in step 5" : "none");
    follower.apply(Ended{{.cause = FeedEnd::Cause::exhausted, .at = position(5)}});
    EXPECT_EQ(text_of(find_loss(follower, {}, later, 1)), "none") << "the feed ends there anyway";
  }
}

TEST(FeedLoss, AKilledRankIsALossUnlessItGaveAReason) {
  auto follower = at_five();
  const Cause killed{.kind = ErrorKind::peer_lost, .rank = 3, .step = 2, .detail = "its process has ended"};
  const auto loss = find_loss(follower, killed, soon, 1);
  EXPECT_EQ(text_of(loss), killed.text() + "; this rank (1) is in step 5");
  EXPECT_EQ(loss->rank, 3);
  follower.apply(Left{2, position(5), "RuntimeError: connection closed"});
  EXPECT_EQ(find_loss(follower, killed, later, 1)->rank, 3) << "the other one ended because of it";
  follower.apply(Left{3, position(4), "ValueError"});
  EXPECT_EQ(text_of(find_loss(follower, killed, soon, 1)),
            "rank 3 raised ValueError at step 4; this rank (1) is in step 5");
}

TEST(FeedLoss, IsFoundOutsideNextButNotAfterThePassHasEnded) {
  std::latch watched(2);
  inproc::run_ranks(3, [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    auto source = std::make_shared<testing::Numbered>(testing::NumberedOptions{});
    Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(), source, {.batch = 1});
    EXPECT_TRUE(feed.next());
    if (rank == 2) return feed.close("ValueError: bad sample");
    const auto loss = std::async(std::launch::async, [&] { return feed.await_loss(); }).get();
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->rank, 2);
    EXPECT_EQ(loss->reason, "ValueError: bad sample");
    watched.arrive_and_wait();
    EXPECT_THROW(feed.next(), PeerLost);
    EXPECT_FALSE(feed.await_loss());
  });
}

TEST(FeedLoss, IsEmptyAfterANormalEnd) {
  inproc::run_ranks(3, [&](const std::shared_ptr<Engine>& engine) {
    auto source = std::make_shared<testing::Numbered>(testing::NumberedOptions{.samples = 30});
    Feed feed(engine, Mesh::parse("dp=3"), layouts::gpt(), source, {.batch = 1});
    auto loss = std::async(std::launch::async, [&] { return feed.await_loss(); });
    while (feed.next()) {
    }
    EXPECT_FALSE(loss.get());
  });
}

}  // namespace
}  // namespace levada
