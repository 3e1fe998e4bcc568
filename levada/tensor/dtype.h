// Element types. They are DLPack's, so that they cover every framework's tensors.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace levada {

/// DLPack's DLDataType: code, bits and lanes. A value.
struct DType {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;

  bool operator==(const DType&) const = default;

  /// Returns the number of bytes that `count` elements take. Sub-byte types (float4, float6) are packed, and the last
  /// byte is zero-padded.
  std::size_t bytes(std::size_t count) const { return (count * bits * lanes + 7) / 8; }
  /// Returns whether every element begins at a byte boundary; only such tensors can be sliced or strided.
  bool is_byte_sized() const { return bits * lanes % 8 == 0; }
  /// Returns the name, such as "int64", "bfloat16", "float8_e4m3fn" or "bool"; with multiple lanes, "float32x4".
  std::string name() const;
  /// The inverse of name(). Throws InvalidArgument.
  static DType parse(std::string_view name);
  /// Returns whether code, bits and lanes form a type that DLPack 1.1 defines, other than a handle.
  bool is_known() const;
};

namespace dtypes {
inline constexpr DType int8{0, 8}, int16{0, 16}, int32{0, 32}, int64{0, 64};
inline constexpr DType uint8{1, 8}, uint16{1, 16}, uint32{1, 32}, uint64{1, 64};
inline constexpr DType float16{2, 16}, float32{2, 32}, float64{2, 64};
inline constexpr DType bfloat16{4, 16};
inline constexpr DType complex64{5, 64}, complex128{5, 128};
inline constexpr DType boolean{6, 8};
inline constexpr DType float8_e3m4{7, 8}, float8_e4m3{8, 8}, float8_e4m3b11fnuz{9, 8}, float8_e4m3fn{10, 8},
    float8_e4m3fnuz{11, 8}, float8_e5m2{12, 8}, float8_e5m2fnuz{13, 8}, float8_e8m0fnu{14, 8};
inline constexpr DType float6_e2m3fn{15, 6}, float6_e3m2fn{16, 6}, float4_e2m1fn{17, 4};
}  // namespace dtypes

/// Returns the DType of a C++ arithmetic type: dtype_of<std::int64_t>() == dtypes::int64.
template <typename T>
constexpr DType dtype_of() {
  constexpr auto bits = static_cast<std::uint8_t>(sizeof(T) * 8);
  if constexpr (std::is_same_v<T, bool>) return dtypes::boolean;
  else if constexpr (std::is_same_v<T, std::complex<float>>) return dtypes::complex64;
  else if constexpr (std::is_same_v<T, std::complex<double>>) return dtypes::complex128;
  else if constexpr (std::is_floating_point_v<T>) return DType{2, bits};
  else if constexpr (std::is_signed_v<T>) return DType{0, bits};
  else {
    static_assert(std::is_unsigned_v<T>, "no DLPack type for this C++ type");
    return DType{1, bits};
  }
}

}  // namespace levada
