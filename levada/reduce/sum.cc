#include "levada/reduce/sum.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfenv>
#include <cstring>

#include "levada/base/error.h"

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

// Compiles a function for several processor generations; the loader chooses one. Sanitizers' code cannot run that
// early.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#define LEVADA_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define LEVADA_CLONES
#endif

// The iterations of the next loop touch different elements, even if a result overwrites an input.
#ifdef __clang__
#define LEVADA_INDEPENDENT
#else
#define LEVADA_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace levada {
namespace {

/// Number of elements added up at a time: their sums stay in the first-level cache.
constexpr std::size_t tile = 2048;

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40;  // a NaN must not be rounded to infinity
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);
}

/// Exact. Normalizes a subnormal number by a subtraction, since arithmetic on subnormal numbers is slow.
float from_float16(std::uint16_t bits) {
  constexpr std::uint32_t smallest = 113U << 23;  // 2^-14, the smallest normal number
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7FFF) << 13;
  const std::uint32_t exponent = magnitude & 0x0F800000;
  const std::uint32_t normal = magnitude + (exponent == 0x0F800000 ? 224U << 23 : 112U << 23);
  const float fraction = std::bit_cast<float>(magnitude + smallest) - std::bit_cast<float>(smallest);
  const std::uint32_t value = exponent == 0 ? std::bit_cast<std::uint32_t>(fraction) : normal;
  return std::bit_cast<float>(value | static_cast<std::uint32_t>(bits & 0x8000) << 16);
}

/// Rounds to nearest, ties to even.
std::uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  const std::uint32_t normal = (magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  // Adding 0.5 moves the rounded bits of a subnormal number to the low end of the sum.
  const auto subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  std::uint32_t half = magnitude < 0x38800000 ? subnormal : normal;
  half = magnitude >= 0x477FF000 ? 0x7C00 : half;
  half = magnitude > 0x7F800000 ? 0x7E00 | ((magnitude >> 13) & 0x1FF) : half;
  return static_cast<std::uint16_t>(half | (bits >> 16 & 0x8000));
}

/// The types in which elements are stored, added up, and stored as results.
template <typename Stored>
struct Plain {
  using stored = Stored;
  using sum = Stored;
  using result = Stored;
  static Stored load(Stored value) { return value; }
  static Stored store(Stored value) { return value; }
};
struct BFloat16 {
  using stored = std::uint16_t;
  using sum = float;
  using result = std::uint16_t;
  static float load(std::uint16_t bits) { return from_bfloat16(bits); }
  static std::uint16_t store(float value) { return to_bfloat16(value); }
};
struct Float16 {
  using stored = std::uint16_t;
  using sum = float;
  using result = std::uint16_t;
  static float load(std::uint16_t bits) { return from_float16(bits); }
  static std::uint16_t store(float value) { return to_float16(value); }
};

/// Adds up 16-bit numbers and does not round the sum.
template <typename Half>
struct Widened : Half {
  using result = float;
  static float store(float value) { return value; }
};
/// Adds up such sums, and rounds the result.
template <typename Half>
struct Rounded : Half {
  using stored = float;
  static float load(float value) { return value; }
};

/// One tile of a reduction. Its functions are always inlined, so that they are compiled for each processor generation.
template <typename Format>
struct Tile {
  using Sum = typename Format::sum;
  std::array<Sum, tile> sums;
  Sum divisor = 1;  ///< integers are not divided
  typename Format::result* to = nullptr;
  std::size_t begin = 0, length = 0;

  /// Adds N arrays to the running sums, from left to right. `first`: there are no sums yet. `last`: stores the sums as
  /// results in the same loop.
  template <std::size_t N, bool first, bool last, bool divides = false>
  [[gnu::always_inline]] inline void add(const std::byte* const* from) {
    std::array<const typename Format::stored*, N> arrays;
    for (std::size_t n = 0; n < N; ++n) arrays[n] = reinterpret_cast<const typename Format::stored*>(from[n]) + begin;
    LEVADA_INDEPENDENT
    for (std::size_t i = 0; i < length; ++i) {
      Sum sum = first ? Format::load(arrays[0][i]) : sums[i];
      for (std::size_t n = first ? 1 : 0; n < N; ++n) sum = static_cast<Sum>(sum + Format::load(arrays[n][i]));
      if constexpr (!last) sums[i] = sum;
      else to[begin + i] = Format::store(divides ? static_cast<Sum>(sum / divisor) : sum);
    }
  }
  template <std::size_t N>
  [[gnu::always_inline]] inline void add_last(const std::byte* const* from, bool first) {
    if (std::is_integral_v<Sum> || divisor == Sum{1}) first ? add<N, true, true>(from) : add<N, false, true>(from);
    else first ? add<N, true, true, true>(from) : add<N, false, true, true>(from);
  }
};

/// Adds four arrays at a time.
template <typename Format>
LEVADA_CLONES void reduce_as(std::size_t divisor, std::span<const std::byte* const> from, std::size_t count,
                             std::byte* to) {
  Tile<Format> part;
  part.divisor = static_cast<typename Format::sum>(divisor);
  part.to = reinterpret_cast<typename Format::result*>(to);
  for (; part.begin < count; part.begin += tile) {
    part.length = std::min(tile, count - part.begin);
    std::size_t done = 0;
    for (; from.size() - done > 4; done += 4) {
      done == 0 ? part.template add<4, true, false>(&from[done]) : part.template add<4, false, false>(&from[done]);
    }
    const bool first = done == 0;
    switch (from.size() - done) {
      case 1: part.template add_last<1>(&from[done], first); break;
      case 2: part.template add_last<2>(&from[done], first); break;
      case 3: part.template add_last<3>(&from[done], first); break;
      default: part.template add_last<4>(&from[done], first);
    }
  }
}

/// The arithmetic of a sum, which is the same for signed and unsigned integers.
enum class Format : std::uint8_t {
  none,
  i8,
  i16,
  i32,
  i64,
  f16,
  bf16,
  f32,
  f64,
  f16_to_f32,
  bf16_to_f32,
  f32_to_f16,
  f32_to_bf16,
};

struct FormatSpec {
  Format format = Format::none;
  std::size_t numbers = 1;  ///< per element
};

FormatSpec describe(DType dtype) {
  if (dtype.lanes != 1) return {};
  const bool integer = dtype.code == dtypes::int8.code || dtype.code == dtypes::uint8.code;
  if (integer && dtype.bits == 8) return {Format::i8};
  if (integer && dtype.bits == 16) return {Format::i16};
  if (integer && dtype.bits == 32) return {Format::i32};
  if (integer && dtype.bits == 64) return {Format::i64};
  if (dtype == dtypes::float16) return {Format::f16};
  if (dtype == dtypes::bfloat16) return {Format::bf16};
  if (dtype == dtypes::float32) return {Format::f32};
  if (dtype == dtypes::float64) return {Format::f64};
  if (dtype == dtypes::complex64) return {Format::f32, 2};
  if (dtype == dtypes::complex128) return {Format::f64, 2};
  return {};
}

void reduce_numbers(Format format, std::size_t divisor, std::span<const std::byte* const> from, std::size_t count,
                    std::byte* to) {
  switch (format) {
    case Format::i8: return reduce_as<Plain<std::uint8_t>>(divisor, from, count, to);
    case Format::i16: return reduce_as<Plain<std::uint16_t>>(divisor, from, count, to);
    case Format::i32: return reduce_as<Plain<std::uint32_t>>(divisor, from, count, to);
    case Format::i64: return reduce_as<Plain<std::uint64_t>>(divisor, from, count, to);
    case Format::f16: return reduce_as<Float16>(divisor, from, count, to);
    case Format::bf16: return reduce_as<BFloat16>(divisor, from, count, to);
    case Format::f32: return reduce_as<Plain<float>>(divisor, from, count, to);
    case Format::f64: return reduce_as<Plain<double>>(divisor, from, count, to);
    case Format::f16_to_f32: return reduce_as<Widened<Float16>>(divisor, from, count, to);
    case Format::bf16_to_f32: return reduce_as<Widened<BFloat16>>(divisor, from, count, to);
    case Format::f32_to_f16: return reduce_as<Rounded<Float16>>(divisor, from, count, to);
    case Format::f32_to_bf16: return reduce_as<Rounded<BFloat16>>(divisor, from, count, to);
    case Format::none: return;
  }
}

/// Returns the format of a sum of arrays in one format that is stored in another.
Format between(Format from, Format to) {
  if (from == to) return from;
  if (from == Format::f16) return Format::f16_to_f32;
  if (from == Format::bf16) return Format::bf16_to_f32;
  return to == Format::f16 ? Format::f32_to_f16 : Format::f32_to_bf16;
}

bool is_integer(Format format) {
  return format >= Format::i8 && format <= Format::i64;
}

/// Sets the default rounding mode and enables denormal numbers on this thread until destroyed. Programs may flush
/// denormals to zero on some of their threads, and the bits of a sum must not depend on the thread that computes it.
class DefaultArithmetic {
 public:
  DefaultArithmetic() { set_default(); }
  ~DefaultArithmetic() { restore(); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
#ifdef __SSE2__
  // Sums use only SSE. fesetenv() would also set the x87 registers, which is slow.
  void set_default() {
    _mm_setcsr(_MM_MASK_MASK);
  }
  void restore() const {
    _mm_setcsr(callers_);
  }
  unsigned callers_ = _mm_getcsr();
#else
  void set_default() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  void restore() const {
    std::fesetenv(&callers_);
  }
  std::fenv_t callers_{};
#endif
};

}  // namespace

std::string_view to_string(ReduceOp op) {
  return op == ReduceOp::sum ? "sum" : "average";
}

void check_reducible(DType dtype, ReduceOp op) {
  const auto format = describe(dtype).format;
  if (format != Format::none && (op == ReduceOp::sum || !is_integer(format))) return;
  throw Unsupported(fmt::format("{} does not support {}; it takes {}floating-point numbers of 16 bits or more",
                                to_string(op), dtype.name(), op == ReduceOp::sum ? "integers and " : ""));
}

DType sum_dtype(DType dtype) {
  return dtype == dtypes::float16 || dtype == dtypes::bfloat16 ? dtypes::float32 : dtype;
}

void add_arrays(DType dtype, std::span<const std::byte* const> from, std::size_t count, DType to_dtype, std::byte* to,
                std::size_t divisor) {
  if (dtype != to_dtype && sum_dtype(dtype) != to_dtype && dtype != sum_dtype(to_dtype)) {
    throw Unsupported(fmt::format("a sum of {} cannot be stored as {}", dtype.name(), to_dtype.name()));
  }
  const DefaultArithmetic arithmetic;
  const auto [format, numbers] = describe(dtype);
  reduce_numbers(between(format, describe(to_dtype).format), divisor, from, count * numbers, to);
}

}  // namespace levada
