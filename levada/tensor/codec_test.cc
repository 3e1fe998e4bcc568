#include "levada/tensor/codec.h"

#include <gtest/gtest.h>

#include "levada/base/error.h"

namespace levada {
namespace {

TEST(TensorCodec, RoundTrips) {
  ByteWriter out;
  put_dtype(out, dtypes::bfloat16);
  put_shape(out, {8, -1, 4096});
  put_shape(out, {});
  EXPECT_EQ(out.size(), 4U + (1 + 3 * 8) + 1);

  ByteReader in(out.view());
  EXPECT_EQ(get_dtype(in), dtypes::bfloat16);
  EXPECT_EQ(get_shape(in), Shape({8, -1, 4096}));
  EXPECT_EQ(get_shape(in, 0), Shape());
  EXPECT_NO_THROW(in.expect_end());
}

TEST(TensorCodec, RejectsAnUnknownDType) {
  ByteWriter out;
  put_dtype(out, {99, 8});
  ByteReader in(out.view());
  EXPECT_THROW(get_dtype(in), CorruptMessage);
}

TEST(TensorCodec, RejectsTooManyDimensions) {
  ByteWriter out;
  put_shape(out, {1, 2});
  EXPECT_EQ(ByteReader(out.view()).get<std::uint8_t>(), 2);
  ByteReader small(out.view());
  EXPECT_THROW(get_shape(small, 1), CorruptMessage);
  const Bytes many(1000, std::byte{Shape::max_rank + 1});
  ByteReader large(many);
  EXPECT_THROW(get_shape(large), CorruptMessage);
}

TEST(TensorCodec, RejectsATruncatedShape) {
  ByteWriter out;
  put_shape(out, {1, 2});
  ByteReader in(out.view().first(out.size() - 1));
  EXPECT_THROW(get_shape(in), CorruptMessage);
}

}  // namespace
}  // namespace levada
