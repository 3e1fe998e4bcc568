#include "levada/plan/step_balance.h"

#include <algorithm>

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

/// As scale() compares both parts for the planner, the second one is scaled so that its bound is that of the first.
struct Level {
  std::vector<LevelWork> works;  ///< by sample
  double bound = 0, mean = 0;
  double scale = 1;  ///< of the second part
};

Level level_of(std::span<const SampleSize> samples, int ranks, const SampleCost& cost) {
  Level level;
  LevelWork sum, most;
  for (const SampleSize& sample : samples) {
    const auto work = cost.of(sample);
    const auto& added =
        level.works.emplace_back(LevelWork{static_cast<double>(work.first), static_cast<double>(work.second)});
    sum += added;
    most = {std::max(most.first, added.first), std::max(most.second, added.second)};
  }
  const LevelWork mean{sum.first / ranks, sum.second / ranks};
  const LevelWork bound{std::max(mean.first, most.first), std::max(mean.second, most.second)};
  if (bound.first > 0 && bound.second > 0) level.scale = bound.first / bound.second;
  for (LevelWork& work : level.works) work.second *= level.scale;
  level.bound = std::max(bound.first, bound.second * level.scale);
  level.mean = std::max(mean.first, mean.second * level.scale);
  return level;
}

/// Work of the busiest of `ranks` if each takes as many samples as any other, in their order.
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

double bound_of(const StepPlan& plan, std::span<const SampleSize> samples, const Balance& options, const Level& level) {
  if (options.max_tokens == 0) return level.bound;
  std::vector<Demand> demands;
  for (const SampleSize& sample : samples) demands.push_back({options.cost.of(sample), sample.tokens});
  const auto room = tokens_of_rank(options.max_tokens, plan.num_micro);
  const LevelWork bound{static_cast<double>(work_bound(demands, &Work::first, plan.ranks, room)),
                        static_cast<double>(work_bound(demands, &Work::second, plan.ranks, room)) * level.scale};
  return bound.worse();
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
  const auto level = level_of(samples, plan.ranks, options.cost);
  StepBalance balance{.steps = 1,
                      .samples = static_cast<std::int64_t>(samples.size()),
                      .micro_batches = plan.num_micro,
                      .unbalanced = busiest_in_order(level, plan.ranks),
                      .bound = bound_of(plan, samples, options, level),
                      .mean = level.mean};
  for (const SampleSize& sample : samples) {
    balance.tokens += sample.tokens;
    balance.padding += sample.padding;
  }
  for (int rank = 0; rank < plan.ranks; ++rank) {
    LevelWork work;
    for (int micro = 0; micro < plan.num_micro; ++micro) {
      for (const std::size_t item : plan.at(rank, micro)) work += level.works[item];
    }
    balance.busiest = std::max(balance.busiest, work.worse());
  }
  return balance;
}

}  // namespace levada
