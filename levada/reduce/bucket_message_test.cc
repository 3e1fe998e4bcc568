#include "levada/reduce/bucket_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levada/base/error.h"
#include "levada/base/fault_testing.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CollectiveSpec spec_of(std::vector<Shape> pieces, DType dtype = dtypes::float32) {
  CollectiveSpec spec{.dtype = dtype, .pieces = std::move(pieces), .flush = 3};
  for (std::size_t i = 0; i < spec.pieces.size(); ++i) spec.numbers.push_back(2 * i);
  return spec;
}

/// Returns a message of `num_inputs` inputs, with room for `bytes`.
Bytes message(const BucketLayout& layout, std::size_t num_inputs, std::size_t bytes) {
  Bytes made(MessageHeader::bytes + bytes);
  MessageHeader{.layout_hash = layout.hash(), .num_inputs = num_inputs}.write(made);
  return made;
}

void add(PeerMessages& peer, ByteView bytes, const BucketLayout& layout) {
  peer.add({bytes, nullptr}, MessageHeader::read(bytes), layout);
}

TEST(BucketLayout, PlacesInputsAtMultiplesOf64Bytes) {
  const BucketLayout layout(spec_of({{4}, {0, 3}, {}, {33}}), 2);
  ASSERT_EQ(layout.inputs(), 4U);
  const std::vector offsets = {layout.offset(0), layout.offset(1), layout.offset(2), layout.offset(3)};
  EXPECT_THAT(offsets, ElementsAre(0, 64, 64, 128));
  EXPECT_EQ(layout.bytes(), 128U + 320U);
  EXPECT_EQ(layout.piece_bytes(3), 33U * 4);
}

TEST(BucketLayout, HasTheSameHashOnlyForTheSameSpec) {
  const auto hash = [](const CollectiveSpec& spec, int copies = 1) { return BucketLayout(spec, copies).hash(); };
  CollectiveSpec average = spec_of({{4}}), gather = spec_of({{4}});
  average.op = ReduceOp::average;
  gather.collective = Collective::all_gather;
  const std::uint64_t one = hash(spec_of({{4}}));
  EXPECT_EQ(hash(spec_of({{4}}), 3), one);
  for (const auto& other :
       {spec_of({{5}}), spec_of({{4, 1}}), spec_of({{4}}, dtypes::int32), spec_of({{4}, {4}}), average, gather}) {
    EXPECT_NE(hash(other), one);
  }
}

TEST(BucketLayout, RejectsABucketLargerThanTheAddressSpace) {
  const auto fault = fault_of([] { BucketLayout(spec_of({{1}, {std::int64_t{1} << 60}}), 64); });
  EXPECT_EQ(fault, "InvalidArgument: a bucket cannot hold input 1: 64 pieces of float32 [1152921504606846976]");
  const auto bytes_of = [](std::int64_t piece) { return BucketLayout(spec_of({{piece}}, dtypes::uint8), 8).bytes(); };
  constexpr std::int64_t eighth = std::int64_t{1} << 60;
  EXPECT_EQ(bytes_of(eighth - 9), (std::uint64_t{1} << 63) - 64) << "rounded up to 64 bytes";
  EXPECT_THAT(fault_of([&] { bytes_of(eighth - 8); }), HasSubstr("a bucket cannot hold input 0"));
}

TEST(CollectiveSpec, SurvivesEncoding) {
  CollectiveSpec spec = spec_of({{4, 5}, {}, {0}}, dtypes::bfloat16);
  spec.op = ReduceOp::average;
  const Bytes encoded = spec.encode();
  ByteReader reader(encoded);
  EXPECT_EQ(CollectiveSpec::decode(reader), spec);
  for (std::size_t size = 0; size < encoded.size(); ++size) {
    ByteReader cut(ByteView(encoded).first(size));
    EXPECT_THROW(CollectiveSpec::decode(cut), CorruptMessage) << size;
  }
}

TEST(CollectiveSpec, NamesTheFirstDifference) {
  const CollectiveSpec one = spec_of({{4}, {5}});
  CollectiveSpec average = one;
  average.op = ReduceOp::average;
  EXPECT_EQ(difference(one, "rank 0", average, "rank 2"),
            "rank 0 calls sum, rank 2 average (at input 0 after 3 flushes)");
  EXPECT_EQ(difference(one, "rank 0", spec_of({{4}, {6}}), "rank 2"),
            "input 1 is float32 [5] on rank 0, float32 [6] on rank 2 (at input 2 after 3 flushes)");
  EXPECT_THAT(difference(one, "rank 0", spec_of({{4}}), "rank 2"),
              HasSubstr("input 1 is float32 [5] on rank 0, missing on rank 2; rank 0 is at input 2 after 3 flushes, "
                        "rank 2 at the end of its bucket after 3 flushes; enqueue the same"));
  EXPECT_EQ(difference(one, "rank 0", one, "rank 2"), "");
  CollectiveSpec later = one, other = one;
  later.flush = 4;
  CollectiveSpec last = one, flush{.collective = Collective::flush};
  last.is_last = true;
  EXPECT_THAT(difference(one, "rank 0", last, "rank 2"),
              HasSubstr("rank 2 flushes after these inputs, rank 0 has more before; enqueue the same inputs"));
  EXPECT_THAT(
      difference(one, "rank 0", flush, "rank 2"),
      HasSubstr("rank 0 calls reduce-scatter, rank 2 flush; rank 0 is at input 0 after 3 flushes, rank 2 at its "
                "next flush after 0 flushes; enqueue the same inputs between two flushes"));
  other.numbers = {0, 5};
  EXPECT_THAT(difference(one, "rank 0", later, "rank 2"),
              HasSubstr("rank 0 is at input 0 after 3 flushes, rank 2 at input 0 after 4 flushes; enqueue the same"));
  EXPECT_THAT(difference(one, "rank 0", other, "rank 2"),
              HasSubstr("rank 0 is at input 2 after 3 flushes, rank 2 at input 5 after 3 flushes"));
}

TEST(PeerMessages, FindsInputsAcrossMessages) {
  const BucketLayout layout(spec_of({{4}, {40}, {8}}), 2);
  const Bytes first = message(layout, 1, 64), second = message(layout, 2, 320 + 64);
  PeerMessages peer;
  add(peer, first, layout);
  add(peer, second, layout);
  const std::byte* const begin = second.data() + MessageHeader::bytes;
  EXPECT_THAT(peer.inputs, ElementsAre(first.data() + MessageHeader::bytes, begin, begin + 320));
}

TEST(PeerMessages, DropsInputsOfAnotherLayout) {
  const BucketLayout layout(spec_of({{4}}), 1), other(spec_of({{5}}), 1);
  const Bytes bytes = message(other, 1, 64);
  PeerMessages peer;
  add(peer, bytes, layout);
  EXPECT_EQ(peer.layout_hash, other.hash());
  EXPECT_TRUE(peer.inputs.empty());
  const Bytes mixed = message(layout, 1, 64);
  EXPECT_THAT(fault_of([&] { add(peer, mixed, layout); }), HasSubstr("have different layouts"));
}

TEST(PeerMessages, RejectsAMessageTooShortForItsInputs) {
  const BucketLayout layout(spec_of({{4}, {40}}), 2);
  const auto fault = [&](const Bytes& bytes) {
    PeerMessages peer;
    return fault_of([&] { add(peer, bytes, layout); });
  };
  EXPECT_EQ(fault(message(layout, 2, 64 + 320)), "no fault");
  EXPECT_THAT(fault(message(layout, 2, 64 + 319)), HasSubstr("too short for its inputs"));
  EXPECT_THAT(fault(message(layout, 3, 1000)), HasSubstr("inputs 0 to 3 of a bucket of 2"));
  EXPECT_THAT(fault(message(layout, UINT64_MAX, 1000)), HasSubstr("of a bucket of 2"));
  Bytes short_header = message(layout, 0, 0);
  short_header.pop_back();
  EXPECT_THAT(fault(short_header), HasSubstr("shorter than its header"));
  EXPECT_THAT(fault(Bytes(MessageHeader::bytes)), HasSubstr("not a message of a collective"));
}

}  // namespace
}  // namespace levada
