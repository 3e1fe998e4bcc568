#include "levada/plan/context_cost.h"

#include <algorithm>
#include <functional>

#include "levada/base/error.h"

namespace levada {
namespace {

using Wide = __int128;  // products of 64-bit numbers

constexpr Wide max_time = Wide{1} << 62;

Wide ceil_div(Wide a, Wide b) {
  return (a + b - 1) / b;
}

std::int64_t checked(Wide time) {
  if (time < max_time) return static_cast<std::int64_t>(time);
  throw InvalidArgument("the time of a micro-batch does not fit in 62 bits; make samples or costs smaller");
}

struct Sums {
  Wide tokens = 0, squares = 0;  ///< sums over padded sequences
};

void add(Sums& sums, std::int64_t tokens, int size) {
  const Wide padded = padded_for(tokens, size);
  sums.tokens += padded;
  sums.squares += padded * padded;
}

Wide time_of(const Sums& sums, int size, const ContextCost& cost) {
  const std::int64_t exchange = size <= cost.ranks_per_host ? cost.exchange_in_host : cost.exchange_between;
  const Wide attention = ceil_div(cost.quadratic * sums.squares, size);
  const Wide ring = ceil_div(exchange * sums.tokens * (size - 1), size);
  return ceil_div(cost.linear * sums.tokens, size) + std::max(attention, ring);
}

}  // namespace

std::int64_t sequence_time(std::int64_t tokens, int size, const ContextCost& cost) {
  Sums sums;
  add(sums, tokens, size);
  return checked(time_of(sums, size, cost));
}

std::int64_t micro_time(std::span<const std::int64_t> tokens, int size, const ContextCost& cost) {
  Sums sums;
  for (const std::int64_t each : tokens) add(sums, each, size);
  return checked(time_of(sums, size, cost) + cost.start + Wide{cost.hop} * (size - 1));
}

}  // namespace levada
