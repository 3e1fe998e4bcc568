#include "levada/feed/envelope.h"

#include <gtest/gtest.h>

#include <limits>

#include "levada/base/error.h"

namespace levada::feed_protocol {
namespace {

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();

TEST(Envelope, IsDecodedAsItWasEncoded) {
  Envelope envelope{.round = 3, .samples = 14, .cursor = Bytes(5, std::byte{7})};
  EXPECT_EQ(decode_envelope(encode(envelope)), envelope);
  envelope.micro = MicroBatch{.step = 1, .micro = 2, .num_micro = 3, .samples = 4};
  EXPECT_EQ(decode_envelope(encode(envelope)), envelope);
}

TEST(Envelope, HasTheSamplesOfEachBatchAndFewerInTheLast) {
  const Envelope envelope{.samples = 14, .cursor = {}};
  EXPECT_EQ(envelope.samples_at(0, 8), 8);
  EXPECT_EQ(envelope.samples_at(1, 8), 6);
  EXPECT_EQ(envelope.samples_at(2, 8), 0);
}

TEST(Envelope, OfMoreSamplesThanABatchHasFillsIt) {
  EXPECT_EQ((Envelope{.samples = most, .cursor = {}}.samples_at(3, 8)), 8);
}

TEST(Envelope, IsRefusedWithANegativeStepOrNumberOfSamples) {
  for (const std::int64_t hostile : {std::int64_t{-1}, least}) {
    EXPECT_THROW(decode_envelope(encode(Envelope{.samples = hostile, .cursor = {}})), CorruptMessage);
    EXPECT_THROW(decode_envelope(encode(Envelope{.round = hostile, .cursor = {}})), CorruptMessage);
  }
}

TEST(Envelope, IsRefusedWithAMicroBatchThatCannotBe) {
  for (const MicroBatch micro : {MicroBatch{.step = -1}, MicroBatch{.micro = -1}, MicroBatch{.num_micro = 0},
                                 MicroBatch{.micro = 3, .num_micro = 3}, MicroBatch{.samples = -1}}) {
    EXPECT_THROW(decode_envelope(encode(Envelope{.cursor = {}, .micro = micro})), CorruptMessage);
  }
}

TEST(Envelope, IsRefusedWithBytesTooFewOrTooMany) {
  for (const auto micro : {std::optional<MicroBatch>(), std::optional(MicroBatch())}) {
    Bytes bytes = encode(Envelope{.samples = 8, .cursor = Bytes(4), .micro = micro});
    const auto without_micro = encode(Envelope{.samples = 8, .cursor = Bytes(4)}).size();
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      if (size == without_micro) continue;
      EXPECT_THROW(decode_envelope(ByteView(bytes).first(size)), CorruptMessage) << size;
    }
    bytes.push_back(std::byte{});
    EXPECT_THROW(decode_envelope(bytes), CorruptMessage);
  }
}

}  // namespace
}  // namespace levada::feed_protocol
