#include "levada/feed/lead.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "levada/engine/inproc/inproc.h"

namespace levada {
namespace {

TEST(FeedLead, DoesNotWaitForReportsOfAClosedRank) {
  const auto engines = inproc::make_group(2);
  const std::vector<Audience> audiences{{.from = 0, .to = {0, 1}}};
  const FeedWiring wiring = wire_feed(engines[0], audiences, 1);
  FeedLead lead(wiring, "", true);
  lead.advance();
  EXPECT_EQ(lead.open_reports().size(), 2U);
  {
    const FeedWiring other = wire_feed(engines[1], audiences, 1);
    Reporter reporter(other);
    EXPECT_FALSE(reporter.send(feed_protocol::Left{.rank = 1}));
  }
  lead.advance();
  EXPECT_FALSE(lead.has_news()) << "that rank 1 has left is sent";
  EXPECT_EQ(lead.open_reports().size(), 1U);
  EXPECT_EQ(engines[0]->wait({.receive = lead.open_reports()}, Deadline::now()), Woken::timeout);
  const Received decision = engines[0]->try_receive(*wiring.decisions);
  ASSERT_TRUE(decision.message);
  EXPECT_TRUE(std::holds_alternative<feed_protocol::Left>(feed_protocol::decode(decision.message->bytes)));
}

}  // namespace
}  // namespace levada
