#include "levada/plan/step_balance.h"

#include <algorithm>

#include "levada/plan/context_plan.h"
#include "levada/plan/work_bound.h"

namespace levada {
namespace {

/// Work in units of the first part of the cost.
struct LevelWork {
  double first = 0, second = 0;

  LevelWork& operator+=(const LevelWork& other) {
    first += other.first;
    second += other.second;
    return *this;
  }
  double worse() const { return std::max(first, second); }
};

/// As in scale() of the planner, the second part is scaled so that its bound equals that of the first.
struct Level {
  std::vector<LevelWork> works;  ///< by sample
  double bound = 0, mean = 0;
  double scale = 1;  ///< scale of the second part
};

Level level_of(std::span<const SampleSize> samples, int ranks, const SampleCost& cost) {
  Level level;
  LevelWork sum, max_sample_work;
  for (const SampleSize& sample : samples) {
    const auto work = cost.of(sample);
    const auto& added =
        level.works.emplace_back(LevelWork{static_cast<double>(work.first), static_cast<double>(work.second)});
    sum += added;
    max_sample_work = {std::max(max_sample_work.first, added.first), std::max(max_sample_work.second, added.second)};
  }
  const LevelWork mean{sum.first / ranks, sum.second / ranks};
  const LevelWork bound{std::max(mean.first, max_sample_work.first), std::max(mean.second, max_sample_work.second)};
  if (bound.first > 0 && bound.second > 0) level.scale = bound.first / bound.second;
  for (LevelWork& work : level.works) work.second *= level.scale;
  level.bound = std::max(bound.first, bound.second * level.scale);
  level.mean = std::max(mean.first, mean.second * level.scale);
  return level;
}

/// Counts the time of micro-batches as work, including communication among the ranks of a block.
StepBalance balance_of_blocks(const StepPlan& plan, std::span<const SampleSize> samples, const Balance& options) {
  const auto context = context_balance_of(options);
  std::vector<std::int64_t> tokens;
  for (const SampleSize& sample : samples) tokens.push_back(sample.tokens);
  std::vector<double> by_rank(static_cast<std::size_t>(plan.ranks));
  StepBalance balance;
  for (int micro = 0; micro < plan.num_micro; ++micro) {
    double max_rank_time = 0;
    for (int rank = 0; rank < plan.ranks; ++rank) {
      std::vector<std::int64_t> lengths;
      for (const std::size_t item : plan.at(rank, micro)) lengths.push_back(tokens[item]);
      const auto time = static_cast<double>(micro_time(lengths, plan.cp_size_at(rank, micro), context.cost));
      by_rank[static_cast<std::size_t>(rank)] += time;
      max_rank_time = std::max(max_rank_time, time);
    }
    balance.waiting += max_rank_time;
  }
  balance.busiest = std::ranges::max(by_rank);
  for (const double time : by_rank) balance.mean += time / plan.ranks;
  balance.bound = static_cast<double>(context_bound(tokens, plan.ranks, plan.num_micro, context));
  balance.waiting_bound = balance.bound;
  balance.unbalanced = static_cast<double>(time_in_order(tokens, plan.ranks, smallest_block(tokens, context), context));
  return balance;
}

/// Returns the work of the busiest rank if each takes the same number of samples, in their order.
double busiest_in_order(const Level& level, int num_ranks) {
  const auto ranks = static_cast<std::size_t>(num_ranks), samples = level.works.size();
  double busiest = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    LevelWork work;
    for (auto i = samples * rank / ranks; i < samples * (rank + 1) / ranks; ++i) work += level.works[i];
    busiest = std::max(busiest, work.worse());
  }
  return busiest;
}

/// Sets both bounds.
void set_bounds(StepBalance& balance, const StepPlan& plan, std::span<const SampleSize> samples, const Balance& options,
                const Level& level) {
  balance.bound = balance.waiting_bound = level.bound;
  if (options.max_tokens == 0) return;
  std::vector<Demand> demands;
  for (const SampleSize& sample : samples) demands.push_back({options.cost.of(sample), sample.tokens});
  const auto worse_of = [&](auto&& bound_of) {
    const LevelWork bound{static_cast<double>(bound_of(&Work::first)),
                          static_cast<double>(bound_of(&Work::second)) * level.scale};
    return bound.worse();
  };
  const auto room = tokens_of_rank(options.max_tokens, plan.num_micro);
  balance.bound = worse_of([&](auto part) { return work_bound(demands, part, plan.ranks, room); });
  const auto waiting =
      worse_of([&](auto part) { return waiting_bound(demands, part, plan.ranks, options.max_tokens); });
  balance.waiting_bound = std::max(balance.bound, waiting);
}

StepBalance balance_of_ranks(const StepPlan& plan, std::span<const SampleSize> samples, const Balance& options) {
  const auto level = level_of(samples, plan.ranks, options.cost);
  StepBalance balance{.unbalanced = busiest_in_order(level, plan.ranks), .mean = level.mean};
  std::vector<LevelWork> by_rank(static_cast<std::size_t>(plan.ranks));
  for (int micro = 0; micro < plan.num_micro; ++micro) {
    double max_rank_work = 0;
    for (int rank = 0; rank < plan.ranks; ++rank) {
      LevelWork work;
      for (const std::size_t item : plan.at(rank, micro)) work += level.works[item];
      max_rank_work = std::max(max_rank_work, work.worse());
      by_rank[static_cast<std::size_t>(rank)] += work;
    }
    balance.waiting += max_rank_work;
  }
  for (const LevelWork& work : by_rank) balance.busiest = std::max(balance.busiest, work.worse());
  set_bounds(balance, plan, samples, options, level);
  return balance;
}

}  // namespace

StepBalance& StepBalance::operator+=(const StepBalance& other) {
  steps += other.steps;
  samples += other.samples;
  tokens += other.tokens;
  micro_batches += other.micro_batches;
  busiest += other.busiest;
  unbalanced += other.unbalanced;
  bound += other.bound;
  waiting += other.waiting;
  waiting_bound += other.waiting_bound;
  mean += other.mean;
  delayed += other.delayed;
  waited += other.waited;
  longest_wait = std::max(longest_wait, other.longest_wait);
  padding += other.padding;
  return *this;
}

void BalanceSeries::add(const StepBalance& step) {
  if (!entries_.empty() && entries_.back().steps < steps_per_entry_) {
    entries_.back() += step;
    return;
  }
  if (entries_.size() == max_entries) {
    for (std::size_t i = 0; i < max_entries / 2; ++i) {
      entries_[i] = entries_[2 * i];
      entries_[i] += entries_[2 * i + 1];
    }
    entries_.resize(max_entries / 2);
    steps_per_entry_ *= 2;
  }
  entries_.push_back(step);
}

StepBalance BalanceSeries::total() const {
  StepBalance total;
  for (const auto& entry : entries_) total += entry;
  return total;
}

double unbalanced_work(std::span<const SampleSize> samples, int ranks, const SampleCost& cost) {
  return busiest_in_order(level_of(samples, ranks, cost), ranks);
}

StepBalance balance_of(const StepPlan& plan, std::span<const SampleSize> samples, const Balance& options) {
  auto balance =
      options.max_cp > 1 ? balance_of_blocks(plan, samples, options) : balance_of_ranks(plan, samples, options);
  balance.steps = 1;
  balance.samples = static_cast<std::int64_t>(samples.size());
  balance.micro_batches = plan.num_micro;
  for (const SampleSize& sample : samples) {
    balance.tokens += sample.tokens;
    balance.padding += sample.padding;
  }
  return balance;
}

}  // namespace levada
