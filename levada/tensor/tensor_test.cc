#include "levada/tensor/tensor.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/tensor/elements.h"

namespace levada {
namespace {

constexpr auto huge = std::numeric_limits<std::int64_t>::max();

Tensor counting(const Shape& shape) {
  auto tensor = Tensor::empty(dtypes::int32, shape);
  const auto values = tensor.mutable_as<std::int32_t>();
  std::iota(values.begin(), values.end(), 0);
  return tensor;
}

std::vector<std::int32_t> elements(const TensorView& view) {
  std::vector<std::int32_t> values(view.element_count());
  copy_elements(view, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape{}.element_count(), 1U);
  EXPECT_EQ((Shape{2, 3, 4}).element_count(), 24U);
  EXPECT_EQ((Shape{2, 0, 4}).element_count(), 0U);
}

TEST(Shape, HasNoCountIfNegativeOrOverflowing) {
  EXPECT_EQ((Shape{2, -1}).element_count(), std::nullopt);
  EXPECT_EQ((Shape{huge, 3}).element_count(), std::nullopt);
  EXPECT_EQ((Shape{0, huge, huge}).element_count(), std::nullopt);
  EXPECT_EQ((Shape{0, -1}).element_count(), std::nullopt);
}

TEST(Shape, ReturnsContiguousStridesAndText) {
  EXPECT_EQ((Shape{2, 3, 4}).contiguous_strides(), (Shape{12, 4, 1}));
  EXPECT_EQ((Shape{2, 0, 4}).contiguous_strides(), (Shape{4, 4, 1}));
  EXPECT_EQ((Shape{8, 4096}).to_string(), "[8, 4096]");
  EXPECT_EQ(Shape{}.to_string(), "[]");
}

TEST(Shape, RejectsASeventeenthDimension) {
  Shape shape(std::vector<std::int64_t>(16, 1));
  EXPECT_THROW(shape.push_back(1), InvalidArgument);
  EXPECT_THROW(Shape(std::vector<std::int64_t>(17, 1)), InvalidArgument);
}

TEST(Tensor, OwnsAlignedMemory) {
  for (const std::int64_t size : {1, 7, 64, 1000}) {
    const auto tensor = Tensor::zeros(dtypes::uint8, {size});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes().data()) % 64, 0U);
    EXPECT_EQ(tensor.bytes().size(), static_cast<std::size_t>(size));
    for (const auto byte : tensor.bytes()) EXPECT_EQ(byte, std::byte{0});
  }
}

TEST(Tensor, IsCreatedFromValues) {
  const auto tensor = Tensor::of<std::int64_t>({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(tensor.as<std::int64_t>()[3], 4);
  EXPECT_EQ(tensor.dtype(), dtypes::int64);
  EXPECT_THROW(Tensor::of<std::int64_t>({2, 2}, {1, 2, 3}), InvalidArgument);
}

TEST(Tensor, MayHaveNoDimensionsOrNoElements) {
  const auto scalar = Tensor::of<float>({}, {1.5F});
  EXPECT_EQ(scalar.as<float>()[0], 1.5F);
  const auto empty = Tensor::empty(dtypes::float32, {3, 0, 2});
  EXPECT_EQ(empty.bytes().size(), 0U);
  EXPECT_TRUE(empty.view().is_contiguous());
  EXPECT_EQ(Tensor::copy_of(empty).shape(), (Shape{3, 0, 2}));
}

TEST(Tensor, RejectsWritesToForeignMemory) {
  auto mine = counting({4});
  mine.mutable_as<std::int32_t>()[0] = 7;
  EXPECT_EQ(mine.as<std::int32_t>()[0], 7);
  Tensor theirs(mine.view(), mine.owner());
  EXPECT_THROW(theirs.mutable_bytes(), InvalidArgument);
}

TEST(Tensor, SlicesKeepTheMemoryAlive) {
  Tensor slice;
  { slice = counting({4, 3}).slice(0, 1, 3); }
  EXPECT_EQ(elements(slice), (std::vector<std::int32_t>{3, 4, 5, 6, 7, 8}));
  EXPECT_TRUE(slice.is_writable());
}

TEST(TensorView, RejectsAnotherElementType) {
  const auto tensor = counting({4});
  EXPECT_THROW(tensor.as<std::int64_t>(), InvalidArgument);
  EXPECT_THROW(tensor.as<float>(), InvalidArgument);
}

TEST(TensorView, RejectsMisalignedElements) {
  alignas(8) const std::array<std::byte, 16> memory{};
  EXPECT_EQ(TensorView(dtypes::int64, {1}, memory.data()).as<std::int64_t>()[0], 0);
  EXPECT_THROW(TensorView(dtypes::int64, {1}, memory.data() + 1).as<std::int64_t>(), InvalidArgument);
}

TEST(TensorView, RejectsShapesAndStridesBeyondMemory) {
  EXPECT_THROW(TensorView(dtypes::int32, {-1}, nullptr), InvalidArgument);
  EXPECT_THROW(TensorView(dtypes::int32, {huge}, nullptr), InvalidArgument);
  EXPECT_THROW(TensorView(dtypes::int32, {4}, {huge}, nullptr), InvalidArgument);
  EXPECT_THROW(TensorView(dtypes::int32, {4}, {std::numeric_limits<std::int64_t>::min()}, nullptr), InvalidArgument);
  EXPECT_THROW(TensorView(dtypes::int32, {4, 4}, {1}, nullptr), InvalidArgument);
}

TEST(TensorView, RejectsStridesWithinBytes) {
  const std::array<std::byte, 8> memory{};
  EXPECT_NO_THROW(TensorView(dtypes::float4_e2m1fn, {4, 4}, {4, 1}, memory.data()));
  EXPECT_THROW(TensorView(dtypes::float4_e2m1fn, {4, 2}, {4, 1}, memory.data()), InvalidArgument);
  EXPECT_THROW(TensorView(dtypes::float4_e2m1fn, {16}, memory.data()).slice(0, 0, 2), InvalidArgument);
  EXPECT_NO_THROW(TensorView(dtypes::float4_e2m1fn, {16}, memory.data()).slice(0, 0, 16));
}

TEST(TensorView, RejectsBytesOfAnotherDevice) {
  const TensorView view(dtypes::int32, {4}, nullptr, Device{2, 0});
  EXPECT_THROW(view.bytes(), InvalidArgument);
  std::array<std::byte, 16> to{};
  EXPECT_THROW(copy_elements(view, to.data()), InvalidArgument);
}

TEST(TensorView, RejectsSlicesOutOfRange) {
  const auto tensor = counting({4, 3});
  EXPECT_THROW(tensor.slice(2, 0, 1), InvalidArgument);
  EXPECT_THROW(tensor.slice(0, -1, 1), InvalidArgument);
  EXPECT_THROW(tensor.slice(0, 3, 2), InvalidArgument);
  EXPECT_THROW(tensor.slice(0, 0, 5), InvalidArgument);
  EXPECT_EQ(tensor.slice(1, 2, 2).shape(), (Shape{4, 0}));
}

TEST(TensorView, TheStrideOfASingleElementDoesNotAffectContiguity) {
  const auto tensor = counting({4});
  EXPECT_TRUE(TensorView(dtypes::int32, {1, 4}, {99, 1}, tensor.bytes().data()).is_contiguous());
  EXPECT_FALSE(TensorView(dtypes::int32, {2, 2}, {1, 2}, tensor.bytes().data()).is_contiguous());
}

TEST(CopyElements, CopiesATransposedTensor) {
  const auto tensor = counting({2, 3});
  const TensorView transposed(dtypes::int32, {3, 2}, {1, 3}, tensor.bytes().data());
  EXPECT_EQ(elements(transposed), (std::vector<std::int32_t>{0, 3, 1, 4, 2, 5}));
}

TEST(CopyElements, RepeatsAlongAZeroStride) {
  const auto tensor = counting({2});
  const TensorView repeated(dtypes::int32, {2, 3}, {1, 0}, tensor.bytes().data());
  EXPECT_EQ(elements(repeated), (std::vector<std::int32_t>{0, 0, 0, 1, 1, 1}));
}

TEST(CopyElements, CopiesAlongANegativeStride) {
  const auto tensor = counting({2, 3});
  const TensorView reversed(dtypes::int32, {2, 3}, {-3, -1}, tensor.bytes().data() + 5 * sizeof(std::int32_t));
  EXPECT_EQ(elements(reversed), (std::vector<std::int32_t>{5, 4, 3, 2, 1, 0}));
}

TEST(CopyElements, CountsEachByteOnce) {
  const auto tensor = counting({4, 6, 5});
  for (const auto& view : {tensor.view(), tensor.view().slice(1, 1, 4), tensor.view().slice(2, 0, 2)}) {
    const auto before = copied_bytes();
    elements(view);
    EXPECT_EQ(copied_bytes() - before, view.byte_count());
  }
}

// Computes the expected result of copy_elements(), one element at a time.
std::vector<std::int32_t> by_index(const TensorView& view) {
  std::vector<std::int32_t> values;
  const auto count = static_cast<std::int64_t>(view.element_count());
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t at = 0;
    for (std::size_t dim = view.shape().rank(); dim-- > 0; rest /= view.shape()[dim]) {
      at += rest % view.shape()[dim] * view.strides()[dim];
    }
    values.push_back(reinterpret_cast<const std::int32_t*>(view.data())[at]);
  }
  return values;
}

TEST(CopyElements, IsCorrectForEveryOrderSignAndSliceOfDimensions) {
  const auto tensor = counting({3, 4, 2, 5});
  std::vector<std::size_t> order = {0, 1, 2, 3};
  do {
    for (unsigned choice = 0; choice < 256; ++choice) {
      Shape shape;
      Shape strides;
      std::int64_t start = 0;
      for (std::size_t dim = 0; dim < 4; ++dim) {
        const auto from = order[dim];
        const auto extent = tensor.shape()[from];
        const auto stride = tensor.view().strides()[from];
        const bool reversed = choice >> dim & 1U;
        const bool cut = choice >> (4 + dim) & 1U;
        shape.push_back(cut ? extent - 1 : extent);
        strides.push_back(reversed ? -stride : stride);
        if (reversed) start += (extent - 1) * stride;
      }
      const TensorView view(dtypes::int32, shape, strides,
                            tensor.bytes().data() + start * static_cast<std::int64_t>(sizeof(std::int32_t)));
      ASSERT_EQ(elements(view), by_index(view)) << shape.to_string() << strides.to_string();
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(SameElements, ComparesBitsAcrossStrides) {
  const auto tensor = counting({2, 3});
  const TensorView transposed(dtypes::int32, {3, 2}, {1, 3}, tensor.bytes().data());
  EXPECT_TRUE(same_elements(transposed, Tensor::copy_of(transposed)));
  EXPECT_FALSE(same_elements(tensor, transposed));
  EXPECT_FALSE(same_elements(transposed, Tensor::zeros(dtypes::int32, {3, 2})));
  EXPECT_FALSE(same_elements(Tensor::zeros(dtypes::int32, {2}), Tensor::zeros(dtypes::float32, {2})));
}

}  // namespace
}  // namespace levada
