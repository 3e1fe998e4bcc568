#include "levada/feed/envelope.h"

#include <gtest/gtest.h>

#include <limits>

#include "levada/base/error.h"

namespace levada::feed_protocol {
namespace {

using levada::decode, levada::encode;

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

TEST(Envelope, RoundTrips) {
  Envelope envelope{.round = 3, .samples = 14, .cursor = Bytes(5, std::byte{7})};
  EXPECT_EQ(decode<Envelope>(encode(envelope)), envelope);
  envelope.num_micro = 3;
  EXPECT_EQ(decode<Envelope>(encode(envelope)), envelope);
  envelope.cp_size = 8;
  EXPECT_EQ(decode<Envelope>(encode(envelope)), envelope);
  envelope.totals = {.samples = 14, .tokens = 14 * 4096, .labels = most};
  EXPECT_EQ(decode<Envelope>(encode(envelope)), envelope);
  envelope.totals = {.samples = 14, .tokens = {}, .labels = {}};
  EXPECT_EQ(decode<Envelope>(encode(envelope)), envelope);
  envelope = {.round = most, .samples = most, .num_micro = most, .cp_size = 1 << 30};
  EXPECT_EQ(decode<Envelope>(encode(envelope)), envelope);
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

TEST(Envelope, ClampsSamplesToTheBatchSize) {
  EXPECT_EQ((Envelope{.samples = most}.samples_at(3, 8)), 8);
}

TEST(Envelope, RejectsNegativeNumbers) {
  for (const std::int64_t hostile : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_THROW(decode<Envelope>(encode(Envelope{.round = hostile})), CorruptMessage);
    EXPECT_THROW(decode<Envelope>(encode(Envelope{.samples = hostile})), CorruptMessage);
    EXPECT_THROW(decode<Envelope>(encode(Envelope{.num_micro = hostile})), CorruptMessage);
    EXPECT_THROW(decode<Envelope>(encode(Envelope{.totals = StepTotals{.labels = hostile}})), CorruptMessage);
  }
}

TEST(Envelope, RejectsABlockOfRanksThatIsNotAPowerOfTwo) {
  for (const int size : {-8, 0, 3, std::numeric_limits<int>::max()}) {
    EXPECT_THROW(decode<Envelope>(encode(Envelope{.cp_size = size})), CorruptMessage) << size;
  }
}

TEST(Envelope, RejectsTooFewOrTooManyBytes) {
  Bytes bytes = encode(Envelope{.samples = 8, .num_micro = 2, .cursor = Bytes(4), .totals = StepTotals{}});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode<Envelope>(ByteView(bytes).first(size)), CorruptMessage) << size;
  }
  bytes.push_back(std::byte{});
  EXPECT_THROW(decode<Envelope>(bytes), CorruptMessage);
}

}  // namespace
}  // namespace levada::feed_protocol
