#include "levada/tensor/packed_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "levada/base/error.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(PackedRow, PlacesSegmentsAtTheirBeginsAndPadsTheRest) {
  const auto first = Tensor::of<std::int32_t>({3}, {1, 2, 3});
  const auto second = Tensor::of<std::int32_t>({1}, {4});
  const std::int32_t ignored = -100;
  for (const bool has_padding : {false, true}) {
    auto row = Tensor::empty(dtypes::int32, {1, 8});
    const auto padding = has_padding ? std::as_bytes(std::span(&ignored, 1)) : ByteView();
    pack_row(std::vector<TensorView>{first, second}, std::vector<std::int64_t>{0, 4}, padding, row.mutable_bytes());
    const auto fill = has_padding ? ignored : 0;
    EXPECT_THAT(row.as<std::int32_t>(), ElementsAre(1, 2, 3, fill, 4, fill, fill, fill));
  }
}

TEST(PackedRow, CopiesStridedSegmentsOfSeveralDimensions) {
  const auto all = Tensor::of<std::int16_t>({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const TensorView every_second(dtypes::int16, {2, 2}, {4, 1}, all.bytes().data());
  const auto backwards = TensorView(dtypes::int16, {1, 2}, {2, -1}, all.bytes().data() + 2);
  auto row = Tensor::empty(dtypes::int16, {1, 3, 2});
  pack_row(std::vector<TensorView>{every_second, backwards}, std::vector<std::int64_t>{0, 2}, {}, row.mutable_bytes());
  EXPECT_THAT(row.as<std::int16_t>(), ElementsAre(1, 2, 5, 6, 2, 1));
}

TEST(PackedRow, RejectsSegmentsThatDifferInMoreThanTheirLength) {
  const auto first = Tensor::zeros(dtypes::int32, {3, 2});
  const auto refused = [&](const Tensor& second, const char* why) {
    EXPECT_THAT(([&] {
                  check_segments(std::vector<TensorView>{first, second});
                }),
                ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  refused(Tensor::zeros(dtypes::int64, {3, 2}), "sample 1 is int64 [3, 2], the first is int32 [3, 2]");
  refused(Tensor::zeros(dtypes::int32, {3, 3}), "sample 1 is int32 [3, 3]");
  refused(Tensor::zeros(dtypes::int32, {3}), "sample 1 is int32 [3]");
  check_segments(std::vector<TensorView>{first, Tensor::zeros(dtypes::int32, {7, 2})});
  EXPECT_THAT(([&] { check_segments(std::vector<TensorView>{Tensor::zeros(dtypes::float4_e2m1fn, {4})}); }),
              ThrowsMessage<InvalidArgument>(HasSubstr("not whole bytes")));
}

}  // namespace
}  // namespace levada
