#include "levada/feed/tail.h"

#include <gtest/gtest.h>

#include "levada/base/error.h"

namespace levada {
namespace {

Tree two_samples() {
  return Tree::dict({{"tokens", Tensor::of<std::int64_t>({2, 2}, {1, 2, 3, 4})},
                     {"loss_mask", Tensor::of<float>({2, 2}, {1, 1, 1, 1})},
                     {"scale", Tensor::of<float>({1}, {7})},
                     {"name", Tree(std::string("text"))}});
}

TEST(Tail, PadsWithTheLastSampleAndALossMaskOfZero) {
  const Tree padded = with_padding(two_samples(), 2, 2, 1);
  EXPECT_EQ(padded.at("tokens"), Tree(Tensor::of<std::int64_t>({3, 2}, {1, 2, 3, 4, 3, 4})));
  EXPECT_EQ(padded.at("loss_mask"), Tree(Tensor::of<float>({3, 2}, {1, 1, 1, 1, 0, 0})));
}

TEST(Tail, DoesNotChangeLeavesWithoutSamples) {
  const Tree padded = with_padding(two_samples(), 2, 2, 1);
  EXPECT_EQ(padded.at("scale"), Tree(Tensor::of<float>({1}, {7})));
  EXPECT_EQ(padded.at("name"), Tree(std::string("text")));
}

TEST(Tail, ABatchOfOnlyPaddingHasNoLoss) {
  const Tree padded = with_padding(two_samples(), 2, 0, 2);
  EXPECT_EQ(padded.at("tokens"), Tree(Tensor::of<std::int64_t>({2, 2}, {3, 4, 3, 4})));
  EXPECT_EQ(padded.at("loss_mask"), Tree(Tensor::of<float>({2, 2}, {0, 0, 0, 0})));
}

TEST(Tail, AnEmptyTailKeepsDtypesAndDimensions) {
  const Tree none = with_padding(two_samples(), 2, 0, 0);
  EXPECT_EQ(none.tensor("tokens").dtype(), dtypes::int64);
  EXPECT_EQ(none.tensor("tokens").shape(), (Shape{0, 2}));
}

TEST(Tail, RejectsSamplesThatDoNotBeginOnBytes) {
  const Tree packed = Tree::dict({{"x", Tensor::zeros(dtypes::float4_e2m1fn, {3, 1})}});
  EXPECT_THROW(static_cast<void>(with_padding(packed, 3, 3, 1)), Unsupported);
}

}  // namespace
}  // namespace levada
