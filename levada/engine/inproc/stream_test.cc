#include "levada/engine/inproc/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace levada::inproc {
namespace {

Message message(int number) {
  const auto held = std::make_shared<const int>(number);
  return {.bytes = std::as_bytes(std::span(held.get(), 1)), .hold = held};
}

int number_of(const Message& m) {
  return *static_cast<const int*>(m.hold.get());
}

TEST(Stream, KeepsAMessageUntilTheSlowestTakerHasIt) {
  Stream stream(0, {1, 2}, 1);
  stream.publish(message(7));
  EXPECT_FALSE(stream.has_room());
  EXPECT_EQ(number_of(stream.take(0)), 7);
  EXPECT_FALSE(stream.has_room());
  EXPECT_EQ(number_of(stream.take(1)), 7);
  EXPECT_TRUE(stream.has_room());
}

TEST(Stream, LetsGoOfAMessageThatAllHaveTaken) {
  Stream stream(0, {1}, 1);
  Message sent = message(7);
  const std::weak_ptr<const void> watched = sent.hold;
  stream.publish(std::move(sent));
  EXPECT_FALSE(watched.expired());
  static_cast<void>(stream.take(0));
  EXPECT_TRUE(watched.expired());
}

TEST(Stream, CountsATakerThatClosedAsHavingTaken) {
  Stream stream(0, {1, 2}, 2);
  stream.publish(message(1));
  stream.publish(message(2));
  static_cast<void>(stream.take(0));
  stream.close_taker(1);
  EXPECT_TRUE(stream.has_room());
  EXPECT_FALSE(stream.has_message(1));
  EXPECT_EQ(number_of(stream.take(0)), 2);
}

TEST(Stream, DropsAMessageThatNobodyIsLeftToTake) {
  Stream stream(0, {1}, 1);
  stream.close_taker(0);
  Message sent = message(1);
  const std::weak_ptr<const void> watched = sent.hold;
  stream.publish(std::move(sent));
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(stream.has_room());
}

TEST(Stream, NamesThoseWhoHoldMessages) {
  Stream stream(0, {3, 5, 9}, 4);
  stream.publish(message(1));
  stream.publish(message(2));
  for (int i = 0; i < 2; ++i) static_cast<void>(stream.take(0));
  static_cast<void>(stream.take(1));
  stream.leased(1)->store(1);
  const auto holders = stream.holders();
  ASSERT_EQ(holders.size(), 2U);
  EXPECT_EQ(holders[0].rank, 5);
  EXPECT_EQ(holders[0].not_taken, 1);
  EXPECT_EQ(holders[0].leased, 1);
  EXPECT_EQ(holders[1].rank, 9);
  EXPECT_EQ(holders[1].not_taken, 2);
  EXPECT_EQ(holders[1].leased, 0);
}

TEST(Stream, IsOverWhenEveryEndIsClosed) {
  Stream stream(0, {0, 1}, 1);
  stream.close_sender();
  stream.close_taker(0);
  EXPECT_FALSE(stream.is_over());
  stream.close_taker(1);
  EXPECT_TRUE(stream.is_over());
}

}  // namespace
}  // namespace levada::inproc
