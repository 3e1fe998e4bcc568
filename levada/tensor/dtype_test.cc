#include "levada/tensor/dtype.h"

#include <gtest/gtest.h>

#include "levada/base/error.h"
#include "levada/tensor/dtypes_testing.h"

namespace levada {
namespace {

TEST(DType, NameRoundTripsForEveryDlpackType) {
  for (auto dtype : all_dtypes) {
    EXPECT_TRUE(dtype.is_known()) << dtype.name();
    EXPECT_EQ(DType::parse(dtype.name()), dtype) << dtype.name();
    dtype.lanes = 4;
    EXPECT_TRUE(dtype.is_known());
    EXPECT_EQ(DType::parse(dtype.name()), dtype) << dtype.name();
  }
}

TEST(DType, UsesTheNamesOfFrameworks) {
  EXPECT_EQ(dtypes::bfloat16.name(), "bfloat16");
  EXPECT_EQ(dtypes::float8_e4m3fn.name(), "float8_e4m3fn");
  EXPECT_EQ(dtypes::boolean.name(), "bool");
  EXPECT_EQ((DType{2, 32, 4}).name(), "float32x4");
  EXPECT_EQ((DType{5, 64, 2}).name(), "complex64x2");
}

TEST(DType, RejectsUnknownNames) {
  for (const auto* name : {"", "x", "x4", "float", "int63", "int64x", "int64x0", "int64x1", "int64x04", "int64x65536",
                           "Int64", " int64", "comple64", "complexx64"}) {
    EXPECT_THROW(DType::parse(name), InvalidArgument) << name;
  }
}

TEST(DType, RejectsHandlesLanesAndOddWidths) {
  EXPECT_FALSE((DType{3, 64}).is_known());
  EXPECT_FALSE((DType{2, 32, 0}).is_known());
  EXPECT_FALSE((DType{2, 8}).is_known());
  EXPECT_FALSE((DType{8, 16}).is_known());
  EXPECT_FALSE((DType{99, 8}).is_known());
  EXPECT_EQ((DType{3, 64}).name(), "dtype(3,64)");
}

TEST(DType, PacksElementsSmallerThanAByte) {
  EXPECT_EQ(dtypes::float4_e2m1fn.bytes(0), 0U);
  EXPECT_EQ(dtypes::float4_e2m1fn.bytes(3), 2U);
  EXPECT_EQ(dtypes::float6_e2m3fn.bytes(4), 3U);
  EXPECT_EQ(dtypes::float6_e2m3fn.bytes(5), 4U);
  EXPECT_FALSE(dtypes::float6_e2m3fn.is_byte_sized());
  EXPECT_TRUE((DType{15, 6, 4}).is_byte_sized());
  EXPECT_EQ(dtypes::complex128.bytes(3), 48U);
}

TEST(DType, MapsToACppType) {
  EXPECT_EQ(dtype_of<std::int64_t>(), dtypes::int64);
  EXPECT_EQ(dtype_of<std::uint8_t>(), dtypes::uint8);
  EXPECT_EQ(dtype_of<float>(), dtypes::float32);
  EXPECT_EQ(dtype_of<bool>(), dtypes::boolean);
  EXPECT_EQ(dtype_of<std::complex<float>>(), dtypes::complex64);
}

}  // namespace
}  // namespace levada
