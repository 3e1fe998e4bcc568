#include "levada/plan/step_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "levada/base/enum_names.h"
#include "levada/base/error.h"
#include "levada/plan/columns.h"
#include "levada/plan/context_plan.h"
#include "levada/plan/work_bound.h"

namespace levada {
namespace {

constexpr EnumName<MicroOrder> order_names[] = {
    {"as-read", MicroOrder::as_read}, {"long-first", MicroOrder::long_first}, {"paired", MicroOrder::paired}};

constexpr EnumName<Wait> wait_names[] = {{"step", Wait::step}, {"micro", Wait::micro}};

constexpr std::int64_t max_sum = std::int64_t{1} << 62;

void add(std::int64_t& sum, std::int64_t value, std::size_t sample, std::string_view what) {
  // Both are below 2^62: no overflow.
  sum += value;
  if (sum < max_sum) return;
  throw InvalidArgument(fmt::format(
      "the {} of samples 0 to {} of the step does not fit in 62 bits; make samples or weights smaller", what, sample));
}

/// Returns the checked demands of the samples.
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

/// Brings both kinds of work to one scale, relative to the lower bound on the busiest rank's work of each kind.
void scale(std::vector<Demand>& demands, int ranks) {
  const auto scale_one = [&](std::int64_t Work::*part) {
    std::int64_t sum = 0, most = 0;
    for (const Demand& demand : demands) {
      sum += demand.work.*part;
      most = std::max(most, demand.work.*part);
    }
    const auto bound = std::max(ceil_div(sum, ranks), most);
    if (bound == 0) return;
    // The bound becomes 2^30, and the total is at most `ranks` times that: 61 bits.
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

std::vector<Demand> pick(std::span<const Demand> demands, const std::vector<std::size_t>& items) {
  std::vector<Demand> picked;
  picked.reserve(items.size());
  for (const std::size_t item : items) picked.push_back(demands[item]);
  return picked;
}

/// Returns the number of bins of max_tokens that best-fit decreasing takes: at most 11/9 of the minimum, plus one.
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

using Ranks = std::vector<Partition>;  ///< micro-batches of each rank

/// Divides each rank's items over its micro-batches. Returns nothing if it finds no room for them.
std::optional<Ranks> micros_of(const Partition& ranks, std::span<const Demand> demands, std::size_t num_micro,
                               std::int64_t max_tokens) {
  Ranks result;
  for (const auto& items : ranks) {
    const auto picked = pick(demands, items);
    auto micros = partition_within(picked, num_micro, max_tokens);
    if (!micros) return {};
    for (auto& micro : *micros) {
      for (std::size_t& item : micro) item = items[item];
    }
    result.push_back(std::move(*micros));
  }
  return result;
}

/// Divides the samples over ranks first, and then those of each rank over its micro-batches. Tries different limits of
/// tokens per rank: with a lower one, micro-batches are easier to pack, and work is harder to balance. Returns the
/// division with the least work on the busiest rank, or nothing if none has room for all samples.
std::optional<Ranks> best_of(std::span<const Demand> demands, int num_ranks, const Balance& options,
                             std::int64_t num_micro) {
  const auto ranks = static_cast<std::size_t>(num_ranks), count = static_cast<std::size_t>(num_micro);
  const auto max_of_rank = tokens_of_rank(options.max_tokens, num_micro);
  std::int64_t tokens = 0;
  for (const Demand& demand : demands) tokens += demand.tokens;
  const std::int64_t room = max_of_rank - ceil_div(tokens, num_ranks);
  const auto bound = std::max(work_bound(demands, &Work::first, num_ranks, max_of_rank),
                              work_bound(demands, &Work::second, num_ranks, max_of_rank));
  std::optional<Ranks> best;
  std::int64_t best_level = INT64_MAX;
  for (const std::int64_t eighths : {0, 1, 2, 4, 6}) {
    // At most a thousandth is left to gain. With equal counts the bound is seldom within reach.
    if (best_level - bound <= bound >> 10 || (best && options.sizes == PartSizes::equal)) break;
    const auto unused = room / 8 * eighths;
    const auto divided = partition_within(demands, ranks, max_of_rank - unused, options.sizes, count, Search::thorough);
    if (!divided) break;  // with less room, the search is even less likely to succeed
    const auto level = busiest_of(*divided, demands);
    if (level >= best_level) continue;
    if (auto found = micros_of(*divided, demands, count, options.max_tokens)) {
      best = std::move(found);
      best_level = level;
    }
  }
  return best;
}

/// Divides the samples over micro-batches first, and then assigns the same number of micro-batches to each rank.
/// Returns nothing if they do not fit.
std::optional<Ranks> micros_first(std::span<const Demand> demands, int num_ranks, const Balance& options,
                                  std::int64_t num_micro) {
  const auto ranks = static_cast<std::size_t>(num_ranks);
  const auto bins = partition_within(demands, ranks * static_cast<std::size_t>(num_micro), options.max_tokens);
  if (!bins) return {};
  std::vector<Demand> of_bins;
  for (const auto& bin : *bins) of_bins.push_back({work_of(bin, demands)});
  const auto divided = partition_within(of_bins, ranks, 0, PartSizes::equal);
  Ranks result;
  for (const auto& of_rank : divided.value()) {
    auto& micros = result.emplace_back();
    for (const std::size_t bin : of_rank) micros.push_back((*bins)[bin]);
  }
  return result;
}

/// Orders micro-batches: those of one rank, or those that all ranks run at the same time.
template <typename Micro>
void arrange(std::vector<Micro>& micros, MicroOrder order, auto&& first_of, auto&& level_of_micro) {
  std::ranges::sort(micros, {}, first_of);
  if (order == MicroOrder::as_read) return;
  std::ranges::stable_sort(micros, std::greater(), level_of_micro);
  if (order == MicroOrder::long_first) return;
  std::vector<Micro> paired;
  for (std::size_t i = 0; i < micros.size(); ++i) {
    paired.push_back(std::move(micros[i % 2 == 0 ? i / 2 : micros.size() - 1 - i / 2]));
  }
  micros = std::move(paired);
}

Ranks arranged(Ranks ranks, std::span<const Demand> demands, MicroOrder order) {
  using Items = std::vector<std::size_t>;
  for (Partition& micros : ranks) {
    arrange(
        micros, order, [](const Items& items) { return items.front(); },
        [&](const Items& items) { return level_of(work_of(items, demands)); });
  }
  return ranks;
}

Ranks arranged_by_rank(Columns columns, std::span<const Demand> demands, MicroOrder order) {
  const auto first_of = [](const Partition& column) {
    return std::ranges::min(column, {}, [](const auto& items) { return items.front(); }).front();
  };
  arrange(columns, order, first_of, [&](const Partition& column) { return busiest_of(column, demands); });
  Ranks ranks(columns.front().size());
  for (Partition& column : columns) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].push_back(std::move(column[rank]));
  }
  return ranks;
}

std::optional<Ranks> divide_into(std::int64_t num_micro, std::span<const Demand> demands, int num_ranks,
                                 const Balance& options) {
  if (options.wait == Wait::micro && num_micro > 1) {
    auto columns = columns_within(demands, static_cast<std::size_t>(num_ranks), static_cast<std::size_t>(num_micro),
                                  options.max_tokens);
    if (!columns) return {};
    return arranged_by_rank(*std::move(columns), demands, options.order);
  }
  auto ranks = best_of(demands, num_ranks, options, num_micro);
  if (!ranks && options.sizes == PartSizes::any) ranks = micros_first(demands, num_ranks, options, num_micro);
  if (!ranks) return {};
  return arranged(*std::move(ranks), demands, options.order);
}

Ranks divide(std::span<const Demand> demands, int num_ranks, const Balance& options) {
  const auto ranks = static_cast<std::int64_t>(num_ranks);
  const auto samples = static_cast<std::int64_t>(demands.size());
  const auto last = samples / ranks;  // as many as a rank has samples: one sample in each
  auto num_micro = ceil_div(count_bins(demands, options.max_tokens), ranks);
  for (bool is_last = false; !is_last && num_micro <= last;
       num_micro = std::min(last, num_micro + std::max<std::int64_t>(1, num_micro / 64))) {
    is_last = num_micro == last;
    if (auto found = divide_into(num_micro, demands, num_ranks, options)) return *std::move(found);
  }
  throw InvalidArgument(fmt::format(
      "the {} samples of the step do not fit into the same number of micro-batches of at most {} tokens on each of {} "
      "ranks with a sample in each; raise max_tokens, or make the number of samples a multiple of the ranks",
      samples, options.max_tokens, ranks));
}

/// Divides the whole step, with one micro-batch on each rank.
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

StepPlan by_rank(const ContextPlan& blocks) {
  StepPlan plan{.ranks = blocks.ranks, .num_micro = static_cast<int>(blocks.micros.size())};
  for (int rank = 0; rank < plan.ranks; ++rank) {
    for (int micro = 0; micro < plan.num_micro; ++micro) {
      const ContextBlock& block = blocks.at(rank, micro);
      plan.micros.push_back(block.samples);
      plan.cp_sizes.push_back(block.size);
    }
  }
  return plan;
}

}  // namespace

std::string_view to_string(MicroOrder order) {
  return enum_name(order, order_names);
}
MicroOrder parse_micro_order(std::string_view word) {
  return parse_enum("order", word, order_names);
}

std::string_view to_string(Wait wait) {
  return enum_name(wait, wait_names);
}
Wait parse_wait(std::string_view word) {
  return parse_enum("wait", word, wait_names);
}

std::string to_string(const Balance& balance) {
  std::string text =
      fmt::format("{}, {} counts", balance.cost.to_string(), balance.sizes == PartSizes::any ? "free" : "equal");
  if (balance.max_tokens > 0) text += fmt::format(", at most {} tokens", balance.max_tokens);
  text += fmt::format(", {}", to_string(balance.order));
  if (balance.wait == Wait::micro) text += ", ranks wait in each micro-batch";
  if (balance.max_delay > 0) text += fmt::format(", delayed up to {} steps", balance.max_delay);
  if (balance.max_cp > 1) text += fmt::format(", sequences on up to {} ranks", balance.max_cp);
  if (!balance.label.empty()) text += fmt::format(", {}", balance.label);
  return text;
}

namespace {

/// Throws InvalidArgument if context_cost_of() makes a time too large for the planner.
void check_context_cost(const SampleCost& cost) {
  const auto longest = [](const ContextCost& times) {
    return std::max({times.exchange_in_host, times.exchange_between, times.hop, times.start});
  };
  const ContextCost scaled = context_cost_of(cost), unscaled;
  if (longest(scaled) <= max_context_cost) return;
  throw InvalidArgument(fmt::format(
      "linear is {} in the cost {}; with max_cp it must be at least {}, because the times of communication grow as it "
      "becomes smaller: choose larger coefficients in the same proportion, or flops(hidden=...)",
      cost.linear, cost.to_string(), longest(unscaled) * unscaled.linear / (max_context_cost + 1) + 1));
}

}  // namespace

void check_balance(const Balance& balance) {
  if (balance.max_tokens < 0) {
    throw InvalidArgument(fmt::format("max_tokens must be 0 or more, got {}", balance.max_tokens));
  }
  if (balance.wait == Wait::micro && balance.max_tokens > 0 && balance.sizes == PartSizes::equal) {
    throw InvalidArgument(
        "equal counts do not fit ranks that wait for each other in each micro-batch (wait=\"micro\", --wait micro): "
        "counts must be free");
  }
  if (balance.max_cp == 1) return;
  if (balance.max_cp < 1 || !std::has_single_bit(static_cast<unsigned>(balance.max_cp))) {
    throw InvalidArgument(fmt::format("max_cp must be a power of two, got {}", balance.max_cp));
  }
  const auto missing = [&]() -> std::string_view {
    if (balance.cost.kind != SampleCost::Kind::flops) return "a cost by flops";
    if (balance.max_tokens == 0) return "max_tokens, the tokens that one rank can hold";
    if (balance.sizes == PartSizes::equal) return "free counts";
    if (balance.max_delay > 0) return "no max_delay, since no long sample has to wait";
    if (balance.order != MicroOrder::as_read) return "the order as-read";
    return {};
  }();
  if (missing.empty()) return check_context_cost(balance.cost);
  throw InvalidArgument(
      fmt::format("max_cp={} gives each sequence its own number of context-parallel ranks, which requires {}",
                  balance.max_cp, missing));
}

ContextCost context_cost_of(const SampleCost& cost) {
  ContextCost context{.linear = cost.linear, .quadratic = cost.quadratic};
  const ContextCost of_hidden_4096;
  for (std::int64_t ContextCost::*time :
       {&ContextCost::exchange_in_host, &ContextCost::exchange_between, &ContextCost::hop, &ContextCost::start}) {
    if (cost.linear > 0) context.*time = context.*time * of_hidden_4096.linear / cost.linear;
  }
  return context;
}

StepPlan plan_step(std::span<const SampleSize> samples, int num_ranks, const Balance& options) {
  if (num_ranks < 1) throw InvalidArgument(fmt::format("ranks must be positive, got {}", num_ranks));
  check_balance(options);
  if (options.max_cp > 1) return by_rank(plan_context(samples, num_ranks, options));
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
  for (auto& micros : ranks) std::ranges::move(micros, std::back_inserter(plan.micros));
  return plan;
}

}  // namespace levada
