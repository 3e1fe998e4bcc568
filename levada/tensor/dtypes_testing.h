// For tests that cover every element type.
#pragma once

#include <array>

#include "levada/tensor/dtype.h"

namespace levada {

/// All types that DLPack defines, with one lane.
inline constexpr std::array all_dtypes = {
    dtypes::int8,           dtypes::int16,
    dtypes::int32,          dtypes::int64,
    dtypes::uint8,          dtypes::uint16,
    dtypes::uint32,         dtypes::uint64,
    dtypes::float16,        dtypes::float32,
    dtypes::float64,        dtypes::bfloat16,
    dtypes::complex64,      dtypes::complex128,
    dtypes::boolean,        dtypes::float8_e3m4,
    dtypes::float8_e4m3,    dtypes::float8_e4m3b11fnuz,
    dtypes::float8_e4m3fn,  dtypes::float8_e4m3fnuz,
    dtypes::float8_e5m2,    dtypes::float8_e5m2fnuz,
    dtypes::float8_e8m0fnu, dtypes::float6_e2m3fn,
    dtypes::float6_e3m2fn,  dtypes::float4_e2m1fn,
};

}  // namespace levada
