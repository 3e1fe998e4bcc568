#include "levada/tensor/dtype.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "levada/base/error.h"

namespace levada {
namespace {

struct NamedDType {
  DType dtype;
  std::string_view name;
};

constexpr std::array known = {
    NamedDType{{0, 2}, "int2"},
    NamedDType{{0, 4}, "int4"},
    NamedDType{dtypes::int8, "int8"},
    NamedDType{dtypes::int16, "int16"},
    NamedDType{dtypes::int32, "int32"},
    NamedDType{dtypes::int64, "int64"},
    NamedDType{{1, 2}, "uint2"},
    NamedDType{{1, 4}, "uint4"},
    NamedDType{dtypes::uint8, "uint8"},
    NamedDType{dtypes::uint16, "uint16"},
    NamedDType{dtypes::uint32, "uint32"},
    NamedDType{dtypes::uint64, "uint64"},
    NamedDType{dtypes::float16, "float16"},
    NamedDType{dtypes::float32, "float32"},
    NamedDType{dtypes::float64, "float64"},
    NamedDType{dtypes::bfloat16, "bfloat16"},
    NamedDType{{5, 32}, "complex32"},
    NamedDType{dtypes::complex64, "complex64"},
    NamedDType{dtypes::complex128, "complex128"},
    NamedDType{dtypes::boolean, "bool"},
    NamedDType{dtypes::float8_e3m4, "float8_e3m4"},
    NamedDType{dtypes::float8_e4m3, "float8_e4m3"},
    NamedDType{dtypes::float8_e4m3b11fnuz, "float8_e4m3b11fnuz"},
    NamedDType{dtypes::float8_e4m3fn, "float8_e4m3fn"},
    NamedDType{dtypes::float8_e4m3fnuz, "float8_e4m3fnuz"},
    NamedDType{dtypes::float8_e5m2, "float8_e5m2"},
    NamedDType{dtypes::float8_e5m2fnuz, "float8_e5m2fnuz"},
    NamedDType{dtypes::float8_e8m0fnu, "float8_e8m0fnu"},
    NamedDType{dtypes::float6_e2m3fn, "float6_e2m3fn"},
    NamedDType{dtypes::float6_e3m2fn, "float6_e3m2fn"},
    NamedDType{dtypes::float4_e2m1fn, "float4_e2m1fn"},
};

const NamedDType* find(std::uint8_t code, std::uint8_t bits) {
  for (const auto& entry : known) {
    if (entry.dtype.code == code && entry.dtype.bits == bits) return &entry;
  }
  return nullptr;
}

const NamedDType* find(std::string_view name) {
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
