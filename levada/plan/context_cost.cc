#include "levada/plan/context_cost.h"

#include <algorithm>
#include <functional>

#include "levada/base/error.h"

namespace levada {
namespace {

__extension__ using WideTime = __int128;  // products of 64-bit numbers

constexpr WideTime max_time = WideTime{1} << 62;

WideTime divided_up(WideTime a, WideTime b) {
  return (a + b - 1) / b;
}

std::int64_t checked_time(WideTime time) {
  if (time < max_time) return static_cast<std::int64_t>(time);
  throw InvalidArgument("the time of a micro-batch does not fit in 62 bits; make samples or costs smaller");
}

struct SequenceSums {
  WideTime tokens = 0, squares = 0;  ///< sums over padded sequences
};

void add_sequence(SequenceSums& sums, std::int64_t tokens, int size) {
  const WideTime padded = padded_for(tokens, size);
  sums.tokens += padded;
  sums.squares += padded * padded;
}

WideTime time_of(const SequenceSums& sums, int size, const ContextCost& cost) {
  const std::int64_t exchange = size <= cost.ranks_per_host ? cost.exchange_in_host : cost.exchange_between;
  const WideTime attention = divided_up(cost.quadratic * sums.squares, size);
  const WideTime ring = divided_up(exchange * sums.tokens * (size - 1), size);
  return divided_up(cost.linear * sums.tokens, size) + std::max(attention, ring);
}

}  // namespace

std::int64_t sequence_time(std::int64_t tokens, int size, const ContextCost& cost) {
  SequenceSums sums;
  add_sequence(sums, tokens, size);
  return checked_time(time_of(sums, size, cost));
}

std::int64_t micro_time(std::span<const std::int64_t> tokens, int size, const ContextCost& cost) {
  SequenceSums sums;
  for (const std::int64_t each : tokens) add_sequence(sums, each, size);
  return checked_time(time_of(sums, size, cost) + cost.start + WideTime{cost.hop} * (size - 1));
}

}  // namespace levada
