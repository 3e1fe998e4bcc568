#include "levada/tensor/dtype.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "levada/base/error.h"

namespace levada {
namespace {

struct Named {
  DType dtype;
  std::string_view name;
};

constexpr std::array known = {
    Named{{0, 2}, "int2"},
    Named{{0, 4}, "int4"},
    Named{dtypes::int8, "int8"},
    Named{dtypes::int16, "int16"},
    Named{dtypes::int32, "int32"},
    Named{dtypes::int64, "int64"},
    Named{{1, 2}, "uint2"},
    Named{{1, 4}, "uint4"},
    Named{dtypes::uint8, "uint8"},
    Named{dtypes::uint16, "uint16"},
    Named{dtypes::uint32, "uint32"},
    Named{dtypes::uint64, "uint64"},
    Named{dtypes::float16, "float16"},
    Named{dtypes::float32, "float32"},
    Named{dtypes::float64, "float64"},
    Named{dtypes::bfloat16, "bfloat16"},
    Named{{5, 32}, "complex32"},
    Named{dtypes::complex64, "complex64"},
    Named{dtypes::complex128, "complex128"},
    Named{dtypes::boolean, "bool"},
    Named{dtypes::float8_e3m4, "float8_e3m4"},
    Named{dtypes::float8_e4m3, "float8_e4m3"},
    Named{dtypes::float8_e4m3b11fnuz, "float8_e4m3b11fnuz"},
    Named{dtypes::float8_e4m3fn, "float8_e4m3fn"},
    Named{dtypes::float8_e4m3fnuz, "float8_e4m3fnuz"},
    Named{dtypes::float8_e5m2, "float8_e5m2"},
    Named{dtypes::float8_e5m2fnuz, "float8_e5m2fnuz"},
    Named{dtypes::float8_e8m0fnu, "float8_e8m0fnu"},
    Named{dtypes::float6_e2m3fn, "float6_e2m3fn"},
    Named{dtypes::float6_e3m2fn, "float6_e3m2fn"},
    Named{dtypes::float4_e2m1fn, "float4_e2m1fn"},
};

const Named* find(std::uint8_t code, std::uint8_t bits) {
  for (const auto& entry : known) {
    if (entry.dtype.code == code && entry.dtype.bits == bits) return &entry;
  }
  return nullptr;
}

const Named* find(std::string_view name) {
  for (const auto& entry : known) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace

std::string DType::name() const {
  const auto* entry = find(code, bits);
  const auto base = entry ? std::string(entry->name) : fmt::format("dtype({},{})", code, bits);
  return lanes == 1 ? base : fmt::format("{}x{}", base, lanes);
}

DType DType::parse(std::string_view name) {
  if (const auto* entry = find(name)) return entry->dtype;
  // "complex64" contains an x, so lanes are parsed only if the whole is not a name.
  if (const auto x = name.rfind('x'); x != std::string_view::npos) {
    std::uint16_t lanes = 0;
    const auto* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + x + 1, end, lanes);
    const auto* entry = find(name.substr(0, x));
    if (entry && error == std::errc{} && stop == end && lanes > 1 && name[x + 1] != '0') {
      return {entry->dtype.code, entry->dtype.bits, lanes};
    }
  }
  throw InvalidArgument(fmt::format(
      "'{}' is not a dtype; write one as int64, float32, bfloat16, float8_e4m3fn, bool or float32x4", name));
}

bool DType::is_known() const {
  return lanes >= 1 && find(code, bits) != nullptr;
}

}  // namespace levada
