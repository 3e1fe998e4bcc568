#include "levada/feed/envelope.h"

#include <gtest/gtest.h>

#include <limits>

#include "levada/base/error.h"

namespace levada::feed_protocol {
namespace {

constexpr std::int64_t most = std::numeric_limits<std::uint32_t>::max();

TEST(Envelope, IsDecodedAsItWasEncoded) {
  Envelope envelope{.round = 3, .samples = 14, .cursor = Bytes(5, std::byte{7})};
  EXPECT_EQ(decode_envelope(encode(envelope)), envelope);
  envelope.num_micro = 3;
  EXPECT_EQ(decode_envelope(encode(envelope)), envelope);
  envelope.cp_size = 8;
  EXPECT_EQ(decode_envelope(encode(envelope)), envelope);
  envelope = {.round = std::numeric_limits<std::int64_t>::max(), .samples = most, .num_micro = most};
  EXPECT_EQ(decode_envelope(encode(envelope)), envelope);
}

TEST(Envelope, IsNoLargerForABalancedFeed) {
  const Envelope plain{.round = 3, .samples = 14, .cursor = Bytes(5)};
  auto balanced = plain;
  balanced.num_micro = 1000;
  EXPECT_EQ(encode(balanced).size(), encode(plain).size());
}

TEST(Envelope, HasTheSamplesOfEachBatchAndFewerInTheLast) {
  const Envelope envelope{.samples = 14};
  EXPECT_EQ(envelope.samples_at(0, 8), 8);
  EXPECT_EQ(envelope.samples_at(1, 8), 6);
  EXPECT_EQ(envelope.samples_at(2, 8), 0);
}

TEST(Envelope, OfMoreSamplesThanABatchHasFillsIt) {
  EXPECT_EQ((Envelope{.samples = most}.samples_at(3, 8)), 8);
}

TEST(Envelope, IsNotEncodedWithNumbersThatDoNotFit) {
  for (const std::int64_t number : {std::int64_t{-1}, most + 1, std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_THROW(encode(Envelope{.samples = number}), InvalidArgument);
    EXPECT_THROW(encode(Envelope{.num_micro = number}), InvalidArgument);
  }
}

TEST(Envelope, IsRefusedWithANegativeRound) {
  for (const std::int64_t hostile : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_THROW(decode_envelope(encode(Envelope{.round = hostile})), CorruptMessage);
  }
}

TEST(Envelope, IsRefusedWithABlockOfMoreRanksThanThereCanBe) {
  auto bytes = encode(Envelope{.cp_size = 1 << 30});
  EXPECT_EQ(decode_envelope(bytes).cp_size, 1 << 30);
  bytes[16] = std::byte{31};
  EXPECT_THROW(decode_envelope(bytes), CorruptMessage);
}

TEST(Envelope, IsRefusedWithBytesTooFewOrTooMany) {
  Bytes bytes = encode(Envelope{.samples = 8, .num_micro = 2, .cursor = Bytes(4)});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_envelope(ByteView(bytes).first(size)), CorruptMessage) << size;
  }
  bytes.push_back(std::byte{});
  EXPECT_THROW(decode_envelope(bytes), CorruptMessage);
}

}  // namespace
}  // namespace levada::feed_protocol
