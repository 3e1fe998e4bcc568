#include "levada/plan/sample_cost.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "levada/base/error.h"

namespace levada {
namespace {

constexpr std::int64_t max_work = std::int64_t{1} << 62;
constexpr std::int64_t default_hidden = 4096;
constexpr std::int64_t max_hidden = std::int64_t{1} << 32;

[[noreturn]] void throw_invalid(std::string_view text) {
  throw InvalidArgument(fmt::format(
      "the cost is '{:.80}'; it must be tokens, flops, flops(hidden=H) or flops(linear=A,quadratic=B)", text));
}

/// Removes `expected` from the beginning of `text`. Returns whether it was there.
bool skip(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

/// Removes a number that is 0 or more from the beginning of `text`.
std::optional<std::int64_t> read_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

SampleCost flops_of(std::int64_t hidden) {
  return {.kind = SampleCost::Kind::flops, .linear = 6 * hidden, .quadratic = 1};
}

std::int64_t checked(std::int64_t work, bool overflows) {
  if (overflows || work >= max_work) {
    throw InvalidArgument("its work does not fit in 62 bits; make the coefficients or the weights smaller");
  }
  if (work < 0) throw InvalidArgument(fmt::format("its work is {}; work must be 0 or more", work));
  return work;
}

}  // namespace

SampleCost SampleCost::parse(std::string_view text) {
  if (text == "tokens") return {};
  if (text == "weights") return {.kind = Kind::weights};
  if (text == "flops") return flops_of(default_hidden);
  std::string_view rest = text;
  if (!skip(rest, "flops(")) throw_invalid(text);
  if (skip(rest, "hidden=")) {
    const auto hidden = read_number(rest);
    if (!hidden || *hidden == 0 || *hidden > max_hidden || rest != ")") throw_invalid(text);
    return flops_of(*hidden);
  }
  if (!skip(rest, "linear=")) throw_invalid(text);
  const auto linear = read_number(rest);
  if (!linear || !skip(rest, ",quadratic=")) throw_invalid(text);
  const auto quadratic = read_number(rest);
  if (!quadratic || rest != ")") throw_invalid(text);
  return {.kind = Kind::flops, .linear = *linear, .quadratic = *quadratic};
}

std::string SampleCost::to_string() const {
  switch (kind) {
    case Kind::tokens: return "tokens";
    case Kind::weights: return "weights";
    case Kind::flops: break;
  }
  return fmt::format("flops(linear={},quadratic={})", linear, quadratic);
}

Work SampleCost::of(const SampleSize& size) const {
  switch (kind) {
    case Kind::tokens: return {.first = checked(size.tokens, false)};
    case Kind::weights: return {.first = checked(size.weights[0], false), .second = checked(size.weights[1], false)};
    case Kind::flops: break;
  }
  std::int64_t projections = 0, attention = 0, sum = 0;
  const bool overflows = __builtin_mul_overflow(linear, size.tokens, &projections) ||
                         __builtin_mul_overflow(quadratic, size.squares, &attention) ||
                         __builtin_add_overflow(projections, attention, &sum);
  return {.first = checked(sum, overflows)};
}

}  // namespace levada
