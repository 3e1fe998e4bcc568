#include "levada/plan/context_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "levada/base/error.h"
#include "levada/plan/context_blocks.h"
#include "levada/plan/work_bound.h"

namespace levada {
namespace {

using Micros = std::vector<std::vector<ContextBlock>>;

/// Returns the mean computing time of a rank, or that of the longest sample on max_cp ranks if it is longer: no plan is
/// faster, even with communication and micro-batches that take no time.
std::int64_t computing_bound(std::span<const std::int64_t> tokens, int ranks, const ContextBalance& balance) {
  WideSum sum = 0, max_sample_time = 0;
  for (const std::int64_t each : tokens) {
    const WideSum time = sequence_time(each, 1, balance.cost);
    sum += time;
    max_sample_time = std::max(max_sample_time, time);
  }
  constexpr WideSum too_long = WideSum{1} << 56;  // the planner multiplies it by small numbers
  if (sum >= too_long)
    throw InvalidArgument("the work of the step does not fit in 56 bits; make samples or costs smaller");
  return static_cast<std::int64_t>(std::max(sum / ranks, max_sample_time / balance.max_cp));
}

/// Sorts micro-batches by their first samples.
void sort_as_read(Micros& micros) {
  std::ranges::sort(micros, {}, [](const auto& blocks) {
    return std::ranges::min(blocks, {}, [](const auto& block) { return block.samples.front(); }).samples.front();
  });
}

/// Plans with blocks of different sizes. Renumbers the samples, the longest first.
class ContextPlanner {
 public:
  ContextPlanner(std::span<const std::int64_t> tokens, int ranks, const ContextBalance& balance)
      : tokens_(tokens), ranks_(ranks), balance_(balance), numbers_(tokens.size()) {
    std::iota(numbers_.begin(), numbers_.end(), std::size_t{0});
    std::ranges::stable_sort(numbers_, std::greater(), [&](std::size_t sample) { return tokens[sample]; });
    for (const std::size_t sample : numbers_) sorted_.push_back(tokens[sample]);
    times_.emplace(sorted_, balance);
    bound_ = computing_bound(tokens, ranks, balance);
    num_micro_needed_ = count_micros();
    const auto sum = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
    fewest_micros_ = std::max<std::int64_t>(1, ceil_div(sum, ranks * balance.max_tokens));
    for (std::size_t sample = 0; sample < tokens.size(); ++sample) {
      max_sample_time_ = std::max(max_sample_time_, times_->at(sample, times_->smallest_within(sample, 0)));
    }
  }

  /// Returns the best plan found with num_micro micro-batches.
  std::optional<ContextPlan> divide(std::int64_t num_micro) const {
    // A longer first micro-batch holds the long sequences, which matters if there are few micro-batches.
    constexpr std::int64_t halves[] = {2, 3, 4, 6}, few = 8;
    std::optional<ContextPlan> best;
    for (const std::int64_t first :
         std::span(halves).first(num_micro == 1 || num_micro > few ? 1 : std::size(halves))) {
      const auto min_limit = 2 * bound_ / (2 * num_micro - 2 + first);
      const auto try_excess = [&](std::int64_t excess) {
        auto plan = divide_within(num_micro, (min_limit + excess) * first / 2, min_limit + excess);
        const bool is_divided = plan.has_value();
        if (is_divided && (!best || time_of(*plan) < time_of(*best))) best = std::move(plan);
        return is_divided;
      };
      auto excess = 1 + min_limit / 512;
      const auto max_excess = 4 * bound_ + max_sample_time_;
      while (!try_excess(excess) && excess < max_excess) excess *= 2;
      if (excess >= max_excess) break;  // the limit is tokens, not time
      for (auto step = excess / 4; step > min_limit / 128; step /= 2) excess += try_excess(excess - step) ? -step : 0;
      if (best && is_good(*best)) break;
    }
    return best;
  }

  std::int64_t time_of(const ContextPlan& plan) const { return step_time(plan, tokens_, balance_); }
  /// Returns whether at most half a percent is left to gain.
  bool is_good(const ContextPlan& plan) const {
    const auto bound = bound_of(fewest_micros_);
    return time_of(plan) - bound <= bound / 200;
  }
  /// Returns the number of micro-batches that samples take if time does not matter.
  std::int64_t num_micro_needed() const { return num_micro_needed_; }
  /// Returns a lower bound on the time of num_micro micro-batches.
  std::int64_t bound_of(std::int64_t num_micro) const { return bound_ + num_micro * balance_.cost.start; }

 private:
  StepSamples step() const { return {sorted_, *times_, ranks_, balance_.max_tokens}; }

  std::int64_t count_micros() const {
    std::vector<std::size_t> left(sorted_.size());
    std::iota(left.begin(), left.end(), std::size_t{0});
    for (std::int64_t count = 1;; ++count) {
      if (!fill_micro(step(), does_not_fit - 1, left, 0) || left.empty()) return count;
    }
  }

  std::optional<ContextPlan> divide_within(std::int64_t num_micro, std::int64_t first_limit, std::int64_t limit) const {
    const auto fewest = static_cast<std::size_t>(ranks_ / balance_.max_cp);  // samples of a micro-batch
    ContextPlan plan{.ranks = ranks_};
    std::vector<std::size_t> left(sorted_.size());
    std::iota(left.begin(), left.end(), std::size_t{0});
    for (std::int64_t micro = 0; micro < num_micro; ++micro) {
      if (times_->total(left, limit) >
          WideSum{ranks_} * (limit * (num_micro - micro) + (micro == 0 ? first_limit - limit : 0)))
        return {};
      auto blocks = fill_micro(step(), micro == 0 ? first_limit : limit, left,
                               static_cast<std::size_t>(num_micro - micro - 1) * fewest);
      if (!blocks) return {};
      plan.micros.push_back(closed(*std::move(blocks)));
    }
    if (!left.empty()) return {};
    sort_as_read(plan.micros);
    return plan;
  }

  std::vector<ContextBlock> closed(std::vector<OpenBlock> open) const {
    std::vector<ContextBlock> blocks;
    int first = 0;
    for (OpenBlock& block : open) {
      for (std::size_t& sample : block.samples) sample = numbers_[sample];
      std::ranges::sort(block.samples);
      blocks.push_back({.first = first, .size = block.size(), .samples = std::move(block.samples)});
      first += block.size();
    }
    return blocks;
  }

  std::span<const std::int64_t> tokens_;
  int ranks_;
  const ContextBalance& balance_;
  std::vector<std::size_t> numbers_;  ///< indexes in tokens_, the longest first
  std::vector<std::int64_t> sorted_;  ///< their tokens
  std::optional<SampleTimes> times_;  ///< in this order, too
  std::int64_t bound_ = 0;
  std::int64_t fewest_micros_ = 1;     ///< lower bound
  std::int64_t num_micro_needed_ = 1;  ///< with which the samples fit, whatever their work
  std::int64_t max_sample_time_ = 0;   ///< maximum over the samples of the least time on any block
};

void check_samples(std::span<const std::int64_t> tokens, int ranks, const ContextBalance& balance) {
  if (static_cast<std::int64_t>(tokens.size()) < ranks / balance.max_cp) {
    throw InvalidArgument(
        fmt::format("a step of {} sample(s) cannot be divided over {} ranks in blocks of at most {}: each block needs "
                    "one; make the step larger, or raise max_cp",
                    tokens.size(), ranks, balance.max_cp));
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0) throw InvalidArgument(fmt::format("sample {} of the step has {} tokens", i, tokens[i]));
    const auto room = balance.max_tokens * balance.max_cp;
    if (padded_for(tokens[i], balance.max_cp) <= room) continue;
    throw InvalidArgument(
        fmt::format("sample {} of the step has {} tokens, but {} ranks of at most {} tokens each hold {}; raise "
                    "max_tokens or max_cp, or cut the sample",
                    i, tokens[i], balance.max_cp, balance.max_tokens, room));
  }
}

/// Returns the plan with blocks of one size, or nothing if the samples do not fit.
std::optional<ContextPlan> static_plan(std::span<const std::int64_t> tokens, int ranks, int size,
                                       const ContextBalance& balance) {
  const auto fits = [&](std::int64_t each) { return padded_for(each, size) <= balance.max_tokens * size; };
  if (static_cast<std::int64_t>(tokens.size()) < ranks / size || !std::ranges::all_of(tokens, fits)) return {};
  try {
    return plan_static_context(tokens, ranks, size, balance);
  } catch (const InvalidArgument&) {
    return {};  // no number of micro-batches has room for all samples and a sample for each block
  }
}

}  // namespace

const ContextBlock& ContextPlan::at(int rank, int micro) const {
  const auto& blocks = micros[static_cast<std::size_t>(micro)];
  return *std::prev(std::ranges::upper_bound(blocks, rank, {}, &ContextBlock::first));
}

void check_context(int ranks, const ContextBalance& balance) {
  if (ranks < 1) throw InvalidArgument(fmt::format("ranks must be positive, got {}", ranks));
  constexpr std::int64_t tokens_limit = std::int64_t{1} << 31;
  if (balance.max_tokens < 1 || balance.max_tokens > tokens_limit) {
    throw InvalidArgument(fmt::format("max_tokens must be from 1 to 2^31, got {}", balance.max_tokens));
  }
  const auto& cost = balance.cost;
  for (const auto each :
       {cost.linear, cost.quadratic, cost.exchange_in_host, cost.exchange_between, cost.hop, cost.start}) {
    if (each < 0 || each > max_context_cost)
      throw InvalidArgument(fmt::format("costs must be from 0 to 2^32, got {}", each));
  }
  constexpr int cp_limit = 1 << 16;
  const bool is_power =
      balance.max_cp > 0 && balance.max_cp <= cp_limit && std::has_single_bit(static_cast<unsigned>(balance.max_cp));
  if (!is_power || ranks % balance.max_cp != 0) {
    throw InvalidArgument(
        fmt::format("max_cp must be a power of two that divides the {} dp x cp ranks, so at most {}, got {}", ranks,
                    ranks & -ranks, balance.max_cp));
  }
}

ContextPlan plan_static_context(std::span<const std::int64_t> tokens, int ranks, int size,
                                const ContextBalance& balance) {
  std::vector<SampleSize> sizes;
  for (const std::int64_t each : tokens) {
    sizes.push_back({.tokens = padded_for(each, size), .weights = {sequence_time(each, size, balance.cost), 0}});
  }
  const auto steps = plan_step(
      sizes, ranks / size,
      {.cost = {.kind = SampleCost::Kind::weights}, .max_tokens = balance.max_tokens * size, .wait = balance.wait});
  ContextPlan plan{.ranks = ranks, .micros = Micros(static_cast<std::size_t>(steps.num_micro))};
  for (int micro = 0; micro < steps.num_micro; ++micro) {
    for (int row = 0; row < steps.ranks; ++row) {
      plan.micros[static_cast<std::size_t>(micro)].push_back(
          {.first = row * size, .size = size, .samples = steps.at(row, micro)});
    }
  }
  return plan;
}

ContextPlan plan_context(std::span<const std::int64_t> tokens, int ranks, const ContextBalance& balance) {
  check_context(ranks, balance);
  check_samples(tokens, ranks, balance);
  const ContextPlanner planner(tokens, ranks, balance);
  std::optional<ContextPlan> best;
  const auto consider = [&](std::optional<ContextPlan> plan) {
    if (plan && (!best || planner.time_of(*plan) < planner.time_of(*best))) best = std::move(plan);
  };
  const auto max_num_micro = static_cast<std::int64_t>(tokens.size()) / (ranks / balance.max_cp);
  for (auto num_micro = planner.num_micro_needed(); num_micro <= max_num_micro;
       num_micro += std::max<std::int64_t>(1, num_micro / 64)) {
    if (best && planner.bound_of(num_micro) >= planner.time_of(*best)) break;
    const bool is_found = best.has_value();
    consider(planner.divide(num_micro));
    if (is_found) break;  // one micro-batch more than the fewest may take less time
  }
  for (int size = 1; size <= balance.max_cp && !(best && planner.is_good(*best)); size *= 2) {
    consider(static_plan(tokens, ranks, size, balance));
  }
  if (!best) {
    throw InvalidArgument(fmt::format(
        "the {} samples of the step do not fit on {} ranks in micro-batches of at most {} tokens a rank; raise "
        "max_tokens or max_cp",
        tokens.size(), ranks, balance.max_tokens));
  }
  return *std::move(best);
}

ContextPlan plan_context(std::span<const SampleSize> samples, int ranks, const Balance& balance) {
  check_balance(balance);
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    tokens.push_back(samples[i].tokens);
    std::int64_t square = 0;
    const bool overflows = __builtin_mul_overflow(samples[i].tokens, samples[i].tokens, &square);
    if (overflows || square == samples[i].squares) continue;
    throw InvalidArgument(
        fmt::format("sample {} of the step is a row of several documents, which cannot have different numbers of "
                    "context-parallel ranks: pack documents (packing=\"documents\", --pack documents)",
                    i));
  }
  return plan_context(tokens, ranks, context_balance_of(balance));
}

std::int64_t step_time(const ContextPlan& plan, std::span<const std::int64_t> tokens, const ContextBalance& balance) {
  std::vector<std::int64_t> done(static_cast<std::size_t>(plan.ranks)), lengths;
  for (const auto& blocks : plan.micros) {
    for (const ContextBlock& block : blocks) {
      lengths.clear();
      for (const std::size_t sample : block.samples) lengths.push_back(tokens[sample]);
      const auto ranks =
          std::span(done).subspan(static_cast<std::size_t>(block.first), static_cast<std::size_t>(block.size));
      std::ranges::fill(ranks, std::ranges::max(ranks) + micro_time(lengths, block.size, balance.cost));
    }
    if (balance.wait == Wait::micro) std::ranges::fill(done, std::ranges::max(done));
  }
  return std::ranges::max(done);
}

int smallest_block(std::span<const std::int64_t> tokens, const ContextBalance& balance) {
  int size = 1;
  const auto longest = tokens.empty() ? 0 : std::ranges::max(tokens);
  while (size < balance.max_cp && padded_for(longest, size) > balance.max_tokens * size) size *= 2;
  return size;
}

ContextBalance context_balance_of(const Balance& balance) {
  return {.cost = context_cost_of(balance.cost),
          .max_tokens = balance.max_tokens,
          .max_cp = balance.max_cp,
          .wait = balance.wait};
}

std::int64_t time_in_order(std::span<const std::int64_t> tokens, int ranks, int size, const ContextBalance& balance) {
  const auto blocks = static_cast<std::size_t>(ranks / size);
  std::int64_t busiest = 0;
  std::vector<std::int64_t> slowest;  // by micro-batch
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto begin = tokens.size() * block / blocks, end = tokens.size() * (block + 1) / blocks;
    std::int64_t time = 0;
    std::size_t micro = 0;
    for (auto first = begin; first < end; ++micro) {
      std::int64_t filled = 0;
      auto last = first;
      while (last < end && (last == first || filled + padded_for(tokens[last], size) <= balance.max_tokens * size)) {
        filled += padded_for(tokens[last++], size);
      }
      const auto each = micro_time(tokens.subspan(first, last - first), size, balance.cost);
      if (micro == slowest.size()) slowest.push_back(0);
      slowest[micro] = std::max(slowest[micro], each);
      time += each;
      first = last;
    }
    busiest = std::max(busiest, time);
  }
  return balance.wait == Wait::step ? busiest : std::accumulate(slowest.begin(), slowest.end(), std::int64_t{0});
}

std::int64_t context_bound(std::span<const std::int64_t> tokens, int ranks, int num_micro,
                           const ContextBalance& balance) {
  return computing_bound(tokens, ranks, balance) + num_micro * balance.cost.start;
}

}  // namespace levada
