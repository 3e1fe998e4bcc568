#include "levada/plan/region.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

#include "levada/base/copy.h"
#include "levada/base/error.h"

namespace levada {
namespace {

using ::testing::ElementsAre;

/// Returns the indices that ranges select, in order.
std::vector<std::int64_t> positions(const Ranges& ranges) {
  std::vector<std::int64_t> result;
  for (const Range& range : ranges) {
    for (auto i = range.begin; i < range.end; ++i) result.push_back(i);
  }
  return result;
}

/// Returns the region's elements, copied one by one regardless of strides.
std::vector<std::int32_t> picked(const TensorView& from, const Region& region) {
  std::vector<std::int32_t> result;
  std::vector<std::int64_t> at(from.shape().rank());
  const auto* data = reinterpret_cast<const std::int32_t*>(from.data());
  const auto visit = [&](auto& self, std::size_t dim, std::int64_t offset) -> void {
    if (dim == at.size()) return result.push_back(data[offset]);
    for (const auto i : positions(region.dims()[dim])) self(self, dim + 1, offset + i * from.strides()[dim]);
  };
  visit(visit, 0, 0);
  return result;
}

std::vector<std::int32_t> copied(const TensorView& from, const Region& region) {
  std::vector<std::int32_t> result(region.element_count());
  copy_region(from, region, reinterpret_cast<std::byte*>(result.data()));
  return result;
}

TEST(Region, CoversTheWholeShapeInitially) {
  const Region region(Shape{2, 0, 3});
  EXPECT_EQ(region.to_string(), "[0:2, 0:0, 0:3]");
  EXPECT_EQ(region.shape(), (Shape{2, 0, 3}));
  EXPECT_EQ(region.element_count(), 0u);
  EXPECT_TRUE(region.covers(Shape{2, 0, 3}));
  EXPECT_FALSE(region.covers(Shape{2, 0}));
  EXPECT_EQ(Region(Shape{}).element_count(), 1u);
  EXPECT_EQ(Region(), Region(Shape{}));
}

TEST(Region, KeepsAPart) {
  Region region(Shape{8, 6});
  region.keep_part(0, 3, 4);
  EXPECT_EQ(region.to_string(), "[6:8, 0:6]");
  region.keep_part(1, 0, 2);
  EXPECT_EQ(region.to_string(), "[6:8, 0:3]");
  EXPECT_FALSE(region.covers(Shape{8, 6}));
}

TEST(Region, KeepsChunksFromBothEnds) {
  const auto kept = [](std::int64_t index) {
    Region region(Shape{12});
    region.keep_zigzag(0, index, 3);
    return region;
  };
  EXPECT_EQ(kept(0).to_string(), "[0:2 10:12]");
  EXPECT_EQ(kept(1).to_string(), "[2:4 8:10]");
  EXPECT_EQ(kept(2).to_string(), "[4:8]");
}

TEST(Region, ZigzagOverOneRankKeepsEverything) {
  Region region(Shape{4});
  region.keep_zigzag(0, 0, 1);
  EXPECT_TRUE(region.covers(Shape{4}));
}

TEST(Region, ZigzagsOfAllRanksCoverEachPositionOnce) {
  for (std::int64_t count = 1; count <= 7; ++count) {
    const std::int64_t chunk = 3, extent = 2 * count * chunk;
    std::vector<int> seen(static_cast<std::size_t>(extent), 0);
    for (std::int64_t index = 0; index < count; ++index) {
      Region region(Shape{extent});
      region.keep_zigzag(0, index, count);
      const auto kept = positions(region.dims()[0]);
      for (const auto i : kept) ++seen[static_cast<std::size_t>(i)];
      // The inverse: position p of the part is position p of chunk `index`, or of the chunk that mirrors it.
      for (std::int64_t p = 0; p < 2 * chunk; ++p) {
        const auto from = p < chunk ? index * chunk + p : (2 * count - 1 - index) * chunk + p - chunk;
        EXPECT_EQ(kept[static_cast<std::size_t>(p)], from);
      }
    }
    EXPECT_THAT(seen, ::testing::Each(1));
  }
}

TEST(Region, SuccessiveCutsCompose) {
  Region region(Shape{16});
  region.keep_zigzag(0, 0, 2);
  EXPECT_EQ(region.to_string(), "[0:4 12:16]");
  Region inner = region;
  inner.keep_zigzag(0, 0, 2);
  EXPECT_EQ(inner.to_string(), "[0:2 14:16]");
  inner = region;
  inner.keep_part(0, 1, 2);
  EXPECT_EQ(inner.to_string(), "[12:16]");
  EXPECT_EQ(region.to_string(), "[0:4 12:16]");
}

TEST(CopyRegion, CopiesLongRuns) {
  std::vector<std::int32_t> data(4 * 8 * 2);
  std::iota(data.begin(), data.end(), 0);
  const TensorView tensor(dtypes::int32, Shape{4, 8, 2}, reinterpret_cast<const std::byte*>(data.data()));
  Region region(tensor.shape());
  region.keep_part(0, 1, 2);
  region.keep_zigzag(1, 0, 2);
  const auto before = copied_bytes();
  EXPECT_EQ(copied(tensor, region), picked(tensor, region));
  EXPECT_EQ(copied_bytes() - before, region.element_count() * 4);
}

TEST(CopyRegion, CopiesTheSamePartPastTheCaches) {
  std::vector<std::int32_t> data(6 * 8000);
  std::iota(data.begin(), data.end(), 0);
  const TensorView tensor(dtypes::int32, Shape{6, 8000}, reinterpret_cast<const std::byte*>(data.data()));
  Region region(tensor.shape());
  region.keep_part(0, 1, 2);
  region.keep_zigzag(1, 1, 2);
  const auto expected = picked(tensor, region);
  std::vector<std::int32_t> result(expected.size());
  copy_region(tensor, region, reinterpret_cast<std::byte*>(result.data()), CopyMode::non_temporal);
  EXPECT_EQ(result, expected);

  std::vector<std::int32_t> all(data.size());
  copy_region(tensor, Region(tensor.shape()), reinterpret_cast<std::byte*>(all.data()), CopyMode::non_temporal);
  EXPECT_EQ(all, data);
}

TEST(CopyRegion, CopiesWithAnyStrides) {
  std::mt19937 random(7);
  const auto number = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  std::vector<std::int32_t> data(20'000);
  std::iota(data.begin(), data.end(), 0);
  for (int round = 0; round < 500; ++round) {
    const auto rank = static_cast<std::size_t>(number(0, 4));
    Shape shape, strides;
    for (std::size_t dim = 0; dim < rank; ++dim) shape.push_back(number(0, 9) == 0 ? number(0, 1) : 2 * number(1, 4));
    strides = shape.contiguous_strides();
    std::int64_t offset = 0;
    for (std::size_t dim = 0; dim < rank; ++dim) {
      const int kind = number(0, 5);
      if (kind == 0) strides[dim] = 0;
      if (kind == 1) strides[dim] *= 2;
      if (kind == 2 && shape[dim] > 0) {
        offset += strides[dim] * (shape[dim] - 1);
        strides[dim] = -strides[dim];
      }
    }
    const TensorView tensor(dtypes::int32, shape, strides, reinterpret_cast<const std::byte*>(data.data() + offset));
    Region region(shape);
    for (std::size_t dim = 0; dim < rank; ++dim) {
      const auto extent = shape[dim];
      if (extent % 2 != 0 || number(0, 1) == 0) continue;
      if (number(0, 1) == 0) region.keep_part(dim, number(0, 1), 2);
      else if (extent % 4 == 0) region.keep_zigzag(dim, number(0, 1), 2);
    }
    ASSERT_EQ(copied(tensor, region), picked(tensor, region))
        << shape.to_string() << strides.to_string() << region.to_string();
    if (const auto view = view_region(tensor, region)) {
      ASSERT_EQ(view->shape(), region.shape());
      ASSERT_EQ(copied(*view, Region(view->shape())), picked(tensor, region));
    }
  }
}

TEST(CopyRegion, RejectsARegionOutsideTheTensor) {
  const std::vector<std::int32_t> data(4);
  const TensorView tensor(dtypes::int32, Shape{4}, reinterpret_cast<const std::byte*>(data.data()));
  Region region(Shape{8});
  region.keep_part(0, 1, 2);
  std::vector<std::byte> to(64);
  EXPECT_THROW(copy_region(tensor, region, to.data()), InvalidArgument);
  EXPECT_THROW(copy_region(tensor, Region(Shape{4, 1}), to.data()), InvalidArgument);
  EXPECT_THROW(view_region(tensor, region), InvalidArgument);
}

TEST(CopyRegion, DoesNotCutPackedElements) {
  const std::vector<std::byte> data(2, std::byte{0x21});
  const TensorView tensor(dtypes::float4_e2m1fn, Shape{4}, data.data());
  std::vector<std::byte> to(2);
  copy_region(tensor, Region(Shape{4}), to.data());
  EXPECT_EQ(to, data);
  Region half(Shape{4});
  half.keep_part(0, 0, 2);
  EXPECT_THROW(copy_region(tensor, half, to.data()), InvalidArgument);
}

TEST(ViewRegion, ViewsOneRangePerDimension) {
  const std::vector<std::int32_t> data = {0, 1, 2, 3, 4, 5, 6, 7};
  const TensorView tensor(dtypes::int32, Shape{2, 4}, reinterpret_cast<const std::byte*>(data.data()));
  Region region(tensor.shape());
  region.keep_part(1, 1, 2);
  const auto view = view_region(tensor, region);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->data(), tensor.data() + 8);
  EXPECT_THAT(copied(*view, Region(view->shape())), ElementsAre(2, 3, 6, 7));

  Region zigzag(tensor.shape());
  zigzag.keep_zigzag(1, 0, 2);
  EXPECT_FALSE(view_region(tensor, zigzag).has_value());
}

TEST(KeepZigzagOfSegments, KeepsTheExtentOfOtherPartsWithoutRows) {
  Region none(Shape{0, 8, 3});
  none.keep_zigzag_of_segments(1, {.rows = 0, .entries = 3, .positions = {}}, 1, 2);
  EXPECT_EQ(none.shape(), (Shape{0, 4, 3}));
  EXPECT_EQ(none.element_count(), 0);
}

}  // namespace
}  // namespace levada
