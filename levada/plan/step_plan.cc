#include "levada/plan/step_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include "levada/base/enum_names.h"
#include "levada/base/error.h"

namespace levada {
namespace {

constexpr EnumName<MicroOrder> order_names[] = {
    {"as-read", MicroOrder::as_read}, {"long-first", MicroOrder::long_first}, {"paired", MicroOrder::paired}};

constexpr std::int64_t max_sum = std::int64_t{1} << 62;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0);
}

void add(std::int64_t& sum, std::int64_t value, std::size_t sample, std::string_view what) {
  // Both are below 2^62: no overflow.
  sum += value;
  if (sum < max_sum) return;
  throw InvalidArgument(fmt::format(
      "the {} of samples 0 to {} of the step does not fit in 62 bits; make samples or weights smaller", what, sample));
}

/// What the samples take, checked.
std::vector<Demand> demands_of(std::span<const SampleSize> samples, const SampleCost& cost) {
  std::vector<Demand> demands;
  demands.reserve(samples.size());
  Work sum;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].tokens < 0 || samples[i].tokens >= max_sum) {
      throw InvalidArgument(fmt::format("sample {} of the step has {} tokens; a sample must have 0 or more, below 2^62",
                                        i, samples[i].tokens));
    }
    const auto work = [&] {
      try {
        return cost.of(samples[i]);
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(fmt::format("sample {} of the step: {}", i, error.what()));
      }
    }();
    add(sum.first, work.first, i, "work");
    add(sum.second, work.second, i, "work");
    add(tokens, samples[i].tokens, i, "number of tokens");
    demands.push_back({work, samples[i].tokens});
  }
  return demands;
}

/// Brings both kinds of work to one scale: each in proportion to what the busiest rank has of it at least.
void scale(std::vector<Demand>& demands, int ranks) {
  const auto scale_one = [&](std::int64_t Work::*part) {
    std::int64_t sum = 0, most = 0;
    for (const Demand& demand : demands) {
      sum += demand.work.*part;
      most = std::max(most, demand.work.*part);
    }
    const auto bound = std::max(ceil_div(sum, ranks), most);
    if (bound == 0) return;
    // The bound becomes 2^30, of which all together have at most `ranks` times as much: 61 bits.
    const int excess = std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(bound))) - 32);
    for (Demand& demand : demands) {
      demand.work.*part = ((demand.work.*part >> excess) << 30) / (bound >> excess);
    }
  };
  const auto has_second = [](const Demand& demand) { return demand.work.second != 0; };
  if (std::ranges::none_of(demands, has_second)) return;
  scale_one(&Work::first);
  scale_one(&Work::second);
}

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
  const double scale = bound.first > 0 && bound.second > 0 ? bound.first / bound.second : 1;
  for (LevelWork& work : level.works) work.second *= scale;
  level.bound = std::max(bound.first, bound.second * scale);
  level.mean = std::max(mean.first, mean.second * scale);
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

std::vector<Demand> pick(std::span<const Demand> demands, const std::vector<std::size_t>& items) {
  std::vector<Demand> picked;
  picked.reserve(items.size());
  for (const std::size_t item : items) picked.push_back(demands[item]);
  return picked;
}

/// How many bins of max_tokens best-fit decreasing takes: at most 11/9 of the fewest, and one.
std::int64_t count_bins(std::span<const Demand> demands, std::int64_t max_tokens) {
  std::vector<std::int64_t> tokens;
  for (const Demand& demand : demands) tokens.push_back(demand.tokens);
  std::ranges::sort(tokens, std::greater());
  std::multiset<std::int64_t> rooms;
  for (const std::int64_t each : tokens) {
    auto best = rooms.lower_bound(each);
    const std::int64_t room = best == rooms.end() ? max_tokens : *best;
    if (best != rooms.end()) rooms.erase(best);
    rooms.insert(room - each);
  }
  return static_cast<std::int64_t>(rooms.size());
}

using Ranks = std::vector<Partition>;  ///< of each rank the micro-batches

/// First the samples to ranks, of which none gets more than `max_of_rank` tokens, then those of each rank to its
/// micro-batches. Nothing if there is no room for that.
std::optional<Ranks> ranks_first(std::span<const Demand> demands, int num_ranks, const Balance& options,
                                 std::int64_t num_micro, std::int64_t max_of_rank) {
  const auto ranks = static_cast<std::size_t>(num_ranks);
  const auto divided = partition_within(demands, ranks, max_of_rank, options.sizes);
  if (!divided) return {};
  Ranks result;
  for (const auto& items : *divided) {
    auto micros = partition_within(pick(demands, items), static_cast<std::size_t>(num_micro), options.max_tokens);
    if (!micros) return {};
    for (auto& micro : *micros) {
      for (std::size_t& item : micro) item = items[item];
    }
    result.push_back(std::move(*micros));
  }
  return result;
}

/// First the samples to micro-batches, then the same number of those to each rank. Nothing if there is no room for
/// that.
std::optional<Ranks> micros_first(std::span<const Demand> demands, int num_ranks, const Balance& options,
                                  std::int64_t num_micro) {
  const auto ranks = static_cast<std::size_t>(num_ranks);
  const auto bins = partition_within(demands, ranks * static_cast<std::size_t>(num_micro), options.max_tokens);
  if (!bins) return {};
  std::vector<Demand> of_bins;
  for (const auto& bin : *bins) {
    Work work;
    for (const std::size_t item : bin) {
      work.first += demands[item].work.first;
      work.second += demands[item].work.second;
    }
    of_bins.push_back({work});
  }
  const auto divided = partition_within(of_bins, ranks, 0, PartSizes::equal);
  Ranks result;
  for (const auto& of_rank : divided.value()) {
    auto& micros = result.emplace_back();
    for (const std::size_t bin : of_rank) micros.push_back((*bins)[bin]);
  }
  return result;
}

Ranks divide(std::span<const Demand> demands, int num_ranks, const Balance& options) {
  const auto ranks = static_cast<std::int64_t>(num_ranks);
  const auto samples = static_cast<std::int64_t>(demands.size());
  std::int64_t tokens = 0;
  for (const Demand& demand : demands) tokens += demand.tokens;
  const std::int64_t mean = ceil_div(tokens, ranks);
  const auto last = samples / ranks;  // As many as samples of a rank: each sample alone.
  auto num_micro = ceil_div(count_bins(demands, options.max_tokens), ranks);
  for (bool is_last = false; !is_last && num_micro <= last;
       num_micro = std::min(last, num_micro + std::max<std::int64_t>(1, num_micro / 64))) {
    is_last = num_micro == last;
    std::int64_t max_of_rank = 0;
    if (__builtin_mul_overflow(options.max_tokens, num_micro, &max_of_rank)) max_of_rank = max_sum;
    // What ranks leave unused makes it easier to pack their micro-batches, and harder to balance their work.
    const std::int64_t room = max_of_rank - mean;
    const std::array<std::int64_t, 3> rooms_left = {room / 8, room / 2, 0};
    for (const auto unused : std::span(rooms_left).first(is_last ? 3 : 2)) {
      if (auto found = ranks_first(demands, num_ranks, options, num_micro, max_of_rank - unused)) {
        return *std::move(found);
      }
    }
    if (options.sizes == PartSizes::equal) continue;
    if (auto found = micros_first(demands, num_ranks, options, num_micro)) return *std::move(found);
  }
  throw InvalidArgument(fmt::format(
      "the {} samples of the step do not fit into the same number of micro-batches of at most {} tokens on each of {} "
      "ranks with a sample in each; raise max_tokens, or make the number of samples a multiple of the ranks",
      samples, options.max_tokens, ranks));
}

/// The whole step, one micro-batch for each rank.
Ranks divide_once(std::span<const Demand> demands, int num_ranks, const Balance& options) {
  const auto ranks = static_cast<std::size_t>(num_ranks);
  std::vector<std::int64_t> costs;
  costs.reserve(demands.size());
  bool is_scalar = true;
  for (const Demand& demand : demands) {
    costs.push_back(demand.work.first);
    is_scalar = is_scalar && demand.work.second == 0;
  }
  auto parts = is_scalar ? partition_by_cost(costs, ranks, options.sizes)
                         : partition_within(demands, ranks, max_sum, options.sizes).value();
  Ranks result;
  for (auto& part : parts) result.push_back({std::move(part)});
  return result;
}

/// Puts the micro-batches of one rank, which come by their first samples, in order.
void arrange(Partition& micros, std::span<const Demand> demands, MicroOrder order) {
  if (order == MicroOrder::as_read) return;
  const auto level = [&](const std::vector<std::size_t>& micro) {
    Work work;
    for (const std::size_t item : micro) {
      work.first += demands[item].work.first;
      work.second += demands[item].work.second;
    }
    return std::max(work.first, work.second);
  };
  std::ranges::stable_sort(micros, std::greater(), level);
  if (order == MicroOrder::long_first) return;
  Partition paired;
  for (std::size_t i = 0; i < micros.size(); ++i) {
    paired.push_back(std::move(micros[i % 2 == 0 ? i / 2 : micros.size() - 1 - i / 2]));
  }
  micros = std::move(paired);
}

}  // namespace

std::string_view to_string(MicroOrder order) {
  return enum_name(order, order_names);
}
MicroOrder parse_micro_order(std::string_view word) {
  return parse_enum("order", word, order_names);
}

std::string to_string(const Balance& balance) {
  std::string text =
      fmt::format("{}, {} counts", balance.cost.to_string(), balance.sizes == PartSizes::any ? "free" : "equal");
  if (balance.max_tokens > 0) text += fmt::format(", at most {} tokens", balance.max_tokens);
  text += fmt::format(", {}", to_string(balance.order));
  if (balance.max_delay > 0) text += fmt::format(", delayed up to {} steps", balance.max_delay);
  if (!balance.label.empty()) text += fmt::format(", {}", balance.label);
  return text;
}

StepPlan plan_step(std::span<const SampleSize> samples, int num_ranks, const Balance& options) {
  if (num_ranks < 1) throw InvalidArgument(fmt::format("ranks must be positive, got {}", num_ranks));
  if (options.max_tokens < 0) {
    throw InvalidArgument(fmt::format("max_tokens must be 0 or more, got {}", options.max_tokens));
  }
  if (samples.size() < static_cast<std::size_t>(num_ranks)) {
    throw InvalidArgument(
        fmt::format("a step of {} sample(s) cannot be divided over {} data-parallel ranks; each needs one, so make the "
                    "step larger",
                    samples.size(), num_ranks));
  }
  auto demands = demands_of(samples, options.cost);
  for (std::size_t i = 0; options.max_tokens > 0 && i < samples.size(); ++i) {
    if (samples[i].tokens <= options.max_tokens) continue;
    throw InvalidArgument(
        fmt::format("sample {} of the step has {} tokens, but a micro-batch holds at most {}; raise max_tokens or cut "
                    "the sample, or see \"Samples longer than a micro-batch\" in docs/balance.md",
                    i, samples[i].tokens, options.max_tokens));
  }
  scale(demands, num_ranks);
  auto ranks = options.max_tokens == 0 ? divide_once(demands, num_ranks, options) : divide(demands, num_ranks, options);
  StepPlan plan{.ranks = num_ranks, .num_micro = static_cast<int>(ranks.front().size())};
  plan.micros.reserve(ranks.size() * ranks.front().size());
  for (auto& micros : ranks) {
    arrange(micros, demands, options.order);
    std::ranges::move(micros, std::back_inserter(plan.micros));
  }
  return plan;
}

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

StepBalance balance_of(const StepPlan& plan, std::span<const SampleSize> samples, const SampleCost& cost) {
  const auto level = level_of(samples, plan.ranks, cost);
  StepBalance balance{.steps = 1,
                      .samples = static_cast<std::int64_t>(samples.size()),
                      .micro_batches = plan.num_micro,
                      .unbalanced = busiest_in_order(level, plan.ranks),
                      .bound = level.bound,
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
