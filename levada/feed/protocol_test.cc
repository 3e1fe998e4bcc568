#include "levada/feed/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace levada::feed_protocol {
namespace {

using ::testing::HasSubstr;

/// Returns a position in a feed in which each step is one round.
FeedPosition at(std::int64_t round) {
  return {.round = round, .step = round};
}

FeedEnd exhausted(std::int64_t round, int rank = 0) {
  return {.at = at(round), .rank = rank, .message = {}};
}

TEST(FeedProtocol, EveryEventRoundTrips) {
  const FeedEnd failed{
      .cause = FeedEnd::Cause::failed, .at = {9, 3, 2}, .rank = 3, .error = ErrorKind::timeout, .message = "no"};
  for (const Event& event :
       {Event(Ready{2, at(9)}), Event(Ready{2, {9, 4, 1}, 77}),
        Event(Ready{2, at(9), 0, {{3, 11, {{"tokens", 5}, {"", 6}}}, {4, 12, {}}}}), Event(Stopped{1, failed}),
        Event(StopAsked{5}), Event(Left{5, {7, 3, 1}, "ValueError: no"}), Event(Granted{11}), Event(Ended{failed})}) {
    EXPECT_EQ(decode(encode(event)), event);
  }
}

TEST(FeedProtocol, RejectsBytesThatAreNotAnEvent) {
  const Bytes good = encode(Ended{exhausted(4)});
  for (const Bytes& whole : {good, encode(Ready{2, at(9), 0, {{3, 11, {{"tokens", 5}, {"", 6}}}, {4, 12, {}}}})}) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_THROW(decode(ByteView(whole).first(size)), CorruptMessage) << size;
    }
  }
  Bytes bad = good;
  bad[0] = std::byte{9};
  EXPECT_THROW(decode(bad), CorruptMessage);
  bad = good;
  bad.push_back(std::byte{0});
  EXPECT_THROW(decode(bad), CorruptMessage);
  EXPECT_THROW(decode(encode(Granted{-1})), CorruptMessage);
  for (const FeedPosition& position :
       {FeedPosition{-1, 0, 0}, {0, -1, 0}, {0, 0, -1}, {1, 2, 0}, {1, 1, 1}, {1, 0, 2}}) {
    EXPECT_THROW(decode(encode(Left{1, position, ""})), CorruptMessage) << to_string(position);
  }
  EXPECT_THROW(decode(encode(Ended{{.cause = FeedEnd::Cause::left, .message = {}}})), CorruptMessage);
}

TEST(FeedProtocol, GrantsWhatEveryReaderHasSent) {
  Lead lead({.ranks = {0, 1}});
  lead.apply(Ready{0, at(3)});
  EXPECT_EQ(lead.granted(), 0);
  lead.apply(Ready{1, at(2)});
  EXPECT_EQ(lead.granted(), 2);
}

TEST(FeedProtocol, EndsWithTheShortestReader) {
  Lead lead({.ranks = {0, 1}});
  lead.apply(Ready{0, at(5)});
  lead.apply(Ready{1, at(1)});
  lead.apply(Stopped{0, exhausted(2)});
  EXPECT_FALSE(lead.end()) << "reader 1 has not come so far";
  lead.apply(Ready{1, at(2)});
  ASSERT_TRUE(lead.end());
  EXPECT_EQ(lead.end()->at.round, 2);
  EXPECT_EQ(lead.granted(), 2);
}

TEST(FeedProtocol, AFailurePrevailsOverAnEndAtTheSameStep) {
  Lead lead({.ranks = {0, 1}});
  lead.apply(Stopped{0, exhausted(0, 0)});
  EXPECT_EQ(lead.end()->cause, FeedEnd::Cause::exhausted);

  Lead other({.ranks = {0, 1}});
  other.apply(Ready{0, at(1)});
  other.apply(Stopped{0, exhausted(1, 0)});
  other.apply(Stopped{1, {.cause = FeedEnd::Cause::failed, .at = at(1), .rank = 1, .message = "broken"}});
  EXPECT_FALSE(other.end());
  other.apply(Ready{1, at(1)});
  EXPECT_EQ(other.end()->message, "broken");
}

TEST(FeedProtocol, TheFirstReadersFailurePrevailsAtTheSameStep) {
  Lead lead({.ranks = {0, 1, 2}});
  for (const int reader : {2, 1}) {
    lead.apply(Stopped{reader, {.cause = FeedEnd::Cause::failed, .at = at(1), .rank = reader, .message = "broken"}});
  }
  for (const int reader : {0, 1, 2}) lead.apply(Ready{reader, at(1)});
  ASSERT_TRUE(lead.end());
  EXPECT_EQ(lead.end()->rank, 1);
}

TEST(FeedProtocol, ReadersThatDivideAStepDifferentlyEndTheFeedBeforeIt) {
  Lead lead({.ranks = {0, 4}});
  lead.apply(Ready{0, at(1), 11});
  lead.apply(Ready{0, at(2), 22});
  lead.apply(Ready{1, at(1), 11});
  EXPECT_FALSE(lead.end());
  lead.apply(Ready{1, at(2), 23});
  ASSERT_TRUE(lead.end());
  EXPECT_EQ(lead.end()->at, at(1));
  EXPECT_EQ(lead.end()->rank, 4);
  EXPECT_EQ(lead.end()->error, ErrorKind::invalid_argument);
  EXPECT_THAT(lead.end()->message, HasSubstr("differently from rank 0"));
  EXPECT_EQ(lead.granted(), 1);
}

/// Returns a unit's content, which differs if a digest does.
UnitDigest content(int unit, std::uint64_t tokens, std::uint64_t labels = 0) {
  return {.unit = unit, .structure = 1, .fields = {{"tokens", tokens}, {"labels", labels}}};
}

TEST(FeedProtocol, ReadersOfDifferentContentEndTheFeedBeforeItsRound) {
  Lead lead({.ranks = {0, 4, 6}, .hosts = {"a", "b", "b\n"}, .units = 2, .remedy = "copy them"});
  lead.apply(Ready{0, at(1), 0, {content(0, 5), content(1, 6)}});
  lead.apply(Ready{0, at(2), 0, {content(0, 7), content(1, 8)}});
  lead.apply(Ready{2, at(1), 0, {content(1, 6)}});
  lead.apply(Ready{2, at(2), 0, {content(1, 9, 1)}});
  EXPECT_FALSE(lead.end()) << "reader 1 has not come so far";
  EXPECT_EQ(lead.granted(), 0);
  lead.apply(Ready{1, at(1), 0, {content(0, 5)}});
  ASSERT_TRUE(lead.end());
  EXPECT_EQ(*lead.end(),
            (FeedEnd{.cause = FeedEnd::Cause::failed,
                     .at = at(1),
                     .rank = 6,
                     .error = ErrorKind::source,
                     .message = "the batch of data-parallel rank 1 differs between rank 0 on host a and rank 6 "
                                "on host b\\n, in labels, tokens; copy them"}));
  EXPECT_EQ(lead.granted(), 1);
}

TEST(FeedProtocol, TheEarliestDifferenceEndsTheFeed) {
  Lead lead({.ranks = {0, 1, 2}});
  for (const int round : {1, 2, 3}) lead.apply(Ready{0, at(round), 0, {content(0, 5)}});
  for (const int round : {1, 2, 3}) lead.apply(Ready{1, at(round), 0, {content(0, round == 3 ? 6 : 5)}});
  EXPECT_FALSE(lead.end());
  lead.apply(Ready{2, at(1), 0, {content(0, 5)}});
  EXPECT_EQ(lead.granted(), 1);
  lead.apply(Ready{2, at(2), 0, {content(0, 6)}});
  ASSERT_TRUE(lead.end());
  EXPECT_EQ(lead.end()->at, at(1));
  EXPECT_EQ(lead.granted(), 1);
}

TEST(FeedProtocol, StructureAndTheNamesOfFieldsCountAsContent) {
  const auto message_of = [](const UnitDigest& a, const UnitDigest& b) {
    Lead lead({.ranks = {0, 1}});
    lead.apply(Ready{0, at(1), 0, {a}});
    lead.apply(Ready{1, at(1), 0, {b}});
    return lead.end() ? lead.end()->message : "none";
  };
  auto other = content(0, 5);
  EXPECT_EQ(message_of(content(0, 5), other), "none");
  other.structure = 2;
  EXPECT_THAT(message_of(content(0, 5), other), HasSubstr("rank 0 and rank 1, in its structure"));
  other.fields = {{"tokens", 5}, {"lengths", 0}};
  EXPECT_THAT(message_of(content(0, 5), other), HasSubstr("in labels, lengths"));
}

TEST(FeedProtocol, AnAnnouncedEndIsFinal) {
  Lead lead({.ranks = {0}});
  lead.apply(Ready{0, at(2)});
  lead.apply(StopAsked{3});
  EXPECT_EQ(*lead.end(), (FeedEnd{.cause = FeedEnd::Cause::stopped, .at = at(2), .rank = 3, .message = {}}));
  lead.apply(StopAsked{1});
  lead.apply(Stopped{0, exhausted(2)});
  EXPECT_EQ(lead.end()->rank, 3);
}

TEST(FeedProtocol, AStopTakesEffectAfterTheLastMicroBatchOfAStep) {
  Lead lead({.ranks = {0, 1}});
  lead.apply(Ready{0, {2, 1, 1}});
  lead.apply(Ready{1, {2, 1, 1}});
  lead.apply(StopAsked{3});
  EXPECT_FALSE(lead.end());
  lead.apply(Ready{0, {3, 2, 0}});
  EXPECT_FALSE(lead.end()) << "reader 1 has not come so far";
  lead.apply(Ready{1, {3, 2, 0}});
  EXPECT_EQ(*lead.end(), (FeedEnd{.cause = FeedEnd::Cause::stopped, .at = {3, 2, 0}, .rank = 3, .message = {}}));
}

TEST(FeedProtocol, AStopOfReadersThatReadWhenAskedWaitsForTheRoundUnderWay) {
  Lead lead({.ranks = {0, 1}}, false);
  lead.apply(Ready{0, at(2)});
  lead.apply(Ready{1, at(2)});
  lead.apply(StopAsked{3});
  EXPECT_FALSE(lead.end()) << "a reader may have begun round 2, which is granted";
  lead.apply(Ready{0, at(3)});
  EXPECT_FALSE(lead.end());
  lead.apply(Ready{1, at(3)});
  EXPECT_EQ(*lead.end(), (FeedEnd{.cause = FeedEnd::Cause::stopped, .at = at(3), .rank = 3, .message = {}}));
  Lead alone({.ranks = {0}}, false);
  alone.apply(Ready{0, at(2)});
  alone.apply(StopAsked{3});
  EXPECT_EQ(alone.end()->at, at(2)) << "its driver knows what it reads";
}

TEST(FeedProtocol, ALeavingRankDoesNotEndTheFeed) {
  Lead lead({.ranks = {0}});
  lead.apply(Ready{0, at(2)});
  lead.apply(Left{3, at(1), "ValueError: no"});
  EXPECT_FALSE(lead.end());
  EXPECT_EQ(lead.granted(), 2);
}

TEST(FeedProtocol, ForwardsTheEarliestDepartureAndPrefersOneWithAReason) {
  Lead lead({.ranks = {0}});
  EXPECT_FALSE(lead.departure());
  lead.apply(Left{3, at(7), ""});
  EXPECT_EQ(lead.departure()->rank, 3);
  lead.apply(Left{2, at(8), "later"});
  EXPECT_EQ(lead.departure()->rank, 3);
  lead.apply(Left{1, at(7), "ValueError: no"});
  EXPECT_EQ(lead.departure()->rank, 1);
  lead.apply(Left{0, at(7), "another"});
  EXPECT_EQ(lead.departure()->rank, 1);
  lead.apply(Left{4, at(6), ""});
  EXPECT_EQ(lead.departure()->rank, 4);
}

TEST(FeedProtocol, ARankIsAbandonedOnlyAtTheStepOfADeparture) {
  Follower follower(false);
  follower.apply(Left{1, at(2), "ValueError: no"});
  EXPECT_FALSE(follower.is_abandoned());
  EXPECT_TRUE(follower.may_receive());
  follower.advance(true);
  EXPECT_FALSE(follower.is_abandoned());
  follower.advance(true);
  EXPECT_TRUE(follower.is_abandoned());
  EXPECT_FALSE(follower.may_receive());
}

TEST(FeedProtocol, ADepartureAtTheEndIsAnErrorOnlyWithAReason) {
  for (const char* reason : {"", "ValueError: no"}) {
    Follower follower(false);
    follower.apply(Left{1, at(1), reason});
    follower.advance(true);
    EXPECT_TRUE(follower.is_abandoned());
    follower.apply(Ended{exhausted(1)});
    EXPECT_EQ(follower.is_abandoned(), *reason != '\0');
  }
}

}  // namespace
}  // namespace levada::feed_protocol
