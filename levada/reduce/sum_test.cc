#include "levada/reduce/sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "levada/base/fault_testing.h"

namespace levada {
namespace {

using ::testing::HasSubstr;

template <typename T>
std::vector<T> reduced(DType dtype, ReduceOp op, const std::vector<std::vector<T>>& arrays) {
  std::vector<const std::byte*> from;
  for (const auto& array : arrays) from.push_back(reinterpret_cast<const std::byte*>(array.data()));
  std::vector<T> to(arrays.front().size());
  check_reducible(dtype, op);
  const std::size_t divisor = op == ReduceOp::average ? from.size() : 1;
  add_arrays(dtype, from, to.size(), dtype, reinterpret_cast<std::byte*>(to.data()), divisor);
  return to;
}

template <typename T>
T sum_of(DType dtype, const std::vector<T>& values) {
  std::vector<std::vector<T>> arrays;
  for (const T value : values) arrays.push_back({value});
  return reduced(dtype, ReduceOp::sum, arrays)[0];
}

/// Returns the number that 16 bits represent, with `fraction` bits of fraction.
double value_of(std::uint16_t bits, int fraction) {
  const int exponents = 15 - fraction;
  const int bias = (1 << (exponents - 1)) - 1;
  const int exponent = bits >> fraction & ((1 << exponents) - 1);
  const double mantissa = (bits & ((1 << fraction) - 1)) / std::ldexp(1.0, fraction);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponents) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias);
  return sign * std::ldexp(1 + mantissa, exponent - bias);
}

/// Returns the nearest 16 bits to a number that float32 holds exactly; of two, those with a last bit of zero.
std::uint16_t nearest(float value, int fraction) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::abs(static_cast<double>(value));
  const auto infinity = static_cast<std::uint16_t>(0x7FFF >> fraction << fraction);
  std::uint16_t low = 0, high = infinity;  // value_of() increases between them
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (value_of(middle, fraction) <= size ? low : high) = middle;
  }
  // The value in the place of infinity, if there were one more exponent.
  const double above =
      high == infinity ? 2 * value_of(low, fraction) - value_of(low - 1, fraction) : value_of(high, fraction);
  const double below = value_of(low, fraction);
  const bool up = size - below > above - size || (size - below == above - size && low % 2 == 1);
  return sign | (up ? high : low);
}

class HalfPrecision : public ::testing::TestWithParam<std::pair<DType, int>> {};

TEST_P(HalfPrecision, SumOfASingleNumberIsUnchanged) {
  const auto [dtype, fraction] = GetParam();
  std::vector<std::uint16_t> all(0x10000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto same = reduced<std::uint16_t>(dtype, ReduceOp::sum, {all});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::isnan(value_of(all[i], fraction))) EXPECT_TRUE(std::isnan(value_of(same[i], fraction))) << i;
    else EXPECT_EQ(same[i], all[i]);
  }
}

TEST_P(HalfPrecision, SumsInFloat32AndRoundsOnce) {
  const auto [dtype, fraction] = GetParam();
  std::mt19937 random(1);
  std::vector<std::vector<std::uint16_t>> arrays(5, std::vector<std::uint16_t>(20'000));
  for (auto& array : arrays) {
    for (auto& bits : array) bits = static_cast<std::uint16_t>(random());
  }
  const auto sums = reduced(dtype, ReduceOp::sum, arrays);
  const auto averages = reduced(dtype, ReduceOp::average, arrays);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    auto sum = static_cast<float>(value_of(arrays[0][i], fraction));
    for (std::size_t a = 1; a < arrays.size(); ++a) sum += static_cast<float>(value_of(arrays[a][i], fraction));
    if (std::isnan(sum)) {
      EXPECT_TRUE(std::isnan(value_of(sums[i], fraction)));
      continue;
    }
    EXPECT_EQ(sums[i], nearest(sum, fraction)) << sum;
    EXPECT_EQ(averages[i], nearest(sum / 5, fraction)) << sum;
  }
}

TEST_P(HalfPrecision, UnroundedPartialSumsDoNotChangeTheResult) {
  const DType dtype = GetParam().first;
  constexpr std::size_t count = 5000;
  std::mt19937 random(3);
  std::vector<std::vector<std::uint16_t>> arrays(5, std::vector<std::uint16_t>(count));
  const std::uint16_t one = dtype == dtypes::bfloat16 ? 0x3F80 : 0x3C00;
  for (auto& array : arrays) {  // from 1 to 2, so that sums are exact in float32
    for (std::uint16_t& bits : array) bits = static_cast<std::uint16_t>(one + random() % 128);
  }
  const auto bytes = [](const auto& array) { return reinterpret_cast<const std::byte*>(array.data()); };
  const auto data = [](auto& array) { return reinterpret_cast<std::byte*>(array.data()); };
  std::vector<const std::byte*> all;
  for (const auto& array : arrays) all.push_back(bytes(array));
  std::vector<std::uint16_t> at_once(count), in_parts(count);
  add_arrays(dtype, all, count, dtype, data(at_once), 5);

  std::vector<float> first(count), second(count);
  add_arrays(dtype, std::span(all).first(3), count, dtypes::float32, data(first));
  add_arrays(dtype, std::span(all).subspan(3), count, dtypes::float32, data(second));
  const std::byte* const parts[] = {bytes(first), bytes(second)};
  add_arrays(dtypes::float32, parts, count, dtype, data(in_parts), 5);
  EXPECT_EQ(in_parts, at_once);
}

INSTANTIATE_TEST_SUITE_P(Formats, HalfPrecision,
                         ::testing::Values(std::pair(dtypes::float16, 10), std::pair(dtypes::bfloat16, 7)));

TEST(Sum, AddsFromLeftToRight) {
  EXPECT_EQ(sum_of<float>(dtypes::float32, {1e8F, 1, -1e8F}), 0);
  EXPECT_EQ(sum_of<float>(dtypes::float32, {1e8F, -1e8F, 1}), 1);
  EXPECT_EQ(sum_of<double>(dtypes::float64, {1e16, 1, -1e16, 1, 1, 1}), 3);
}

TEST(Sum, MatchesASequentialSumForAnyNumberOfArrays) {
  std::mt19937 random(2);
  for (std::size_t count = 1; count <= 13; ++count) {
    std::vector<std::vector<float>> arrays(count, std::vector<float>(5000));
    for (auto& array : arrays) {
      for (auto& value : array) value = static_cast<float>(random()) * 1e-3F - 1e6F;
    }
    const auto sums = reduced(dtypes::float32, ReduceOp::sum, arrays);
    const auto averages = reduced(dtypes::float32, ReduceOp::average, arrays);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      float sum = arrays[0][i];
      for (std::size_t a = 1; a < count; ++a) sum += arrays[a][i];
      ASSERT_EQ(sums[i], sum);
      ASSERT_EQ(averages[i], sum / static_cast<float>(count));
    }
  }
}

TEST(Sum, PropagatesInfinityAndNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sum_of<float>(dtypes::float32, {1, infinity}), infinity);
  EXPECT_TRUE(std::isnan(sum_of<float>(dtypes::float32, {infinity, -infinity})));
  EXPECT_TRUE(std::isnan(sum_of<float>(dtypes::float32, {std::nanf(""), 1})));
}

TEST(Sum, WrapsIntegers) {
  EXPECT_EQ(sum_of<std::int8_t>(dtypes::int8, {127, 1}), -128);
  EXPECT_EQ(sum_of<std::uint16_t>(dtypes::uint16, {0xFFFF, 2}), 1);
  EXPECT_EQ(sum_of<std::int64_t>(dtypes::int64, {1LL << 53, 1, -3}), (1LL << 53) - 2);
}

TEST(Sum, AddsComplexNumbersPartByPart) {
  const std::vector<std::vector<float>> arrays = {{1, 2}, {3, 5}};
  std::vector<const std::byte*> from;
  for (const auto& array : arrays) from.push_back(reinterpret_cast<const std::byte*>(array.data()));
  std::vector<float> to(2);
  add_arrays(dtypes::complex64, from, 1, dtypes::complex64, reinterpret_cast<std::byte*>(to.data()), 2);
  EXPECT_EQ(to, (std::vector<float>{2, 3.5F}));
}

TEST(Sum, MayOverwriteOneOfItsArrays) {
  std::vector<float> a(3000, 1), b(3000, 2);
  const std::byte* const from[] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data())};
  add_arrays(dtypes::float32, from, a.size(), dtypes::float32, reinterpret_cast<std::byte*>(a.data()));
  EXPECT_EQ(a, std::vector<float>(3000, 3));
}

TEST(Sum, NamesUnsupportedReductions) {
  const auto fault = [](DType dtype, ReduceOp op) { return fault_of([&] { check_reducible(dtype, op); }); };
  EXPECT_THAT(fault(dtypes::boolean, ReduceOp::sum),
              HasSubstr("Unsupported: sum does not support bool; it takes integers and"));
  EXPECT_THAT(fault(dtypes::float8_e5m2, ReduceOp::average),
              HasSubstr("average does not support float8_e5m2; it takes floating"));
  EXPECT_THAT(fault(dtypes::int32, ReduceOp::average), HasSubstr("average does not support int32; it takes floating"));
  EXPECT_EQ(fault(dtypes::int32, ReduceOp::sum), "no fault");
}

TEST(Sum, IgnoresTheThreadsRoundingMode) {
  std::fesetround(FE_UPWARD);
  const float rounded = sum_of<float>(dtypes::float32, {1, 1e-10F});
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(rounded, 1);
}

#if defined(__x86_64__)
TEST(Sum, KeepsDenormalNumbersIfTheThreadFlushesThemToZero) {
  constexpr unsigned flush_to_zero = 0x8040;  // for results and operands
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | flush_to_zero);
  const float least = std::numeric_limits<float>::denorm_min();
  const float sum = sum_of<float>(dtypes::float32, {least, least, least});
  EXPECT_EQ(__builtin_ia32_stmxcsr() & flush_to_zero, flush_to_zero);
  __builtin_ia32_ldmxcsr(before);
  EXPECT_EQ(sum, 3 * least);
}
#endif

}  // namespace
}  // namespace levada
