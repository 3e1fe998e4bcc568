#include "levada/plan/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <type_traits>

#include "levada/base/assert.h"
#include "levada/base/error.h"
#include "levada/plan/part_tree.h"

namespace levada {
namespace {

void check(std::span<const std::int64_t> costs, std::size_t parts) {
  if (parts == 0) throw InvalidArgument("a division needs at least one part");
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (costs[i] < 0) throw InvalidArgument(fmt::format("the cost of item {} must be 0 or more, got {}", i, costs[i]));
    if (__builtin_add_overflow(sum, costs[i], &sum)) {
      throw InvalidArgument("the sum of the costs does not fit in 63 bits");
    }
  }
}

Demand& operator+=(Demand& a, const Demand& b) {
  a.work.first += b.work.first;
  a.work.second += b.work.second;
  a.tokens += b.tokens;
  return a;
}
Demand& operator-=(Demand& a, const Demand& b) {
  a.work.first -= b.work.first;
  a.work.second -= b.work.second;
  a.tokens -= b.tokens;
  return a;
}

/// Divides items greedily, then by exchanges. `Load`: an item's contribution to its part, a cost or a Demand.
template <typename Load>
class Balancer {
 public:
  Balancer(std::span<const Load> loads, std::size_t parts, std::int64_t max_tokens = 0, std::size_t min_items = 1)
      : loads_(loads), max_tokens_(max_tokens), min_items_(min_items), parts_(parts) {
    std::vector<std::pair<std::int64_t, std::size_t>> by_level;
    by_level.reserve(loads.size());
    for (std::size_t i = 0; i < loads.size(); ++i) by_level.emplace_back(-level(loads[i]), i);
    std::ranges::sort(by_level);
    order_.reserve(loads.size());
    for (const auto& [negative, item] : by_level) order_.push_back(item);
    for (auto& part : parts_) part.items.reserve(2 * loads.size() / parts + 1);
  }

  /// Adds each item to the part that is cheapest with it.
  void fill() {
    // Each of the first items starts a part, so that no part is empty even if items cost nothing.
    const std::size_t own = std::min(parts_.size(), order_.size());
    for (std::size_t i = 0; i < own; ++i) add(i, order_[i]);
    const auto rest = std::span(order_).subspan(own);
    if (has_second()) {
      for (const std::size_t item : rest) {
        const auto with = [&](const Part& part) { return level(sum(part.load, loads_[item])); };
        add(static_cast<std::size_t>(std::ranges::min_element(parts_, {}, with) - parts_.begin()), item);
      }
      return;
    }
    PartTree tree(parts_.size());
    const auto update = [&](std::size_t p) { tree.set(p, first_of(parts_[p].load), tokens_of(parts_[p].load)); };
    for (std::size_t p = 0; p < parts_.size(); ++p) update(p);
    for (const std::size_t item : rest) {
      const auto p = tree.find(max_tokens_ - tokens_of(loads_[item]));
      add(p, item);
      update(p);
    }
  }

  void fill_equally() {
    std::vector<std::size_t> by_cost(parts_.size());
    std::iota(by_cost.begin(), by_cost.end(), std::size_t{0});
    for (std::size_t first = 0; first < order_.size(); first += parts_.size()) {
      std::ranges::stable_sort(by_cost, {}, [this](std::size_t p) { return level(parts_[p].load); });
      const auto count = std::min(parts_.size(), order_.size() - first);
      for (std::size_t i = 0; i < count; ++i) add(by_cost[i], order_[first + i]);
    }
  }

  /// Adds each item to the fullest part that has room (best fit), and the last items to parts that are still empty.
  void fill_tightly() {
    auto by_tokens = order_;
    std::ranges::stable_sort(by_tokens, std::greater(), [this](std::size_t i) { return loads_[i].tokens; });
    std::size_t used = 0;
    for (std::size_t i = 0; i < by_tokens.size(); ++i) {
      const auto room = [&](std::size_t p) {
        return max_tokens_ - parts_[p].load.tokens - loads_[by_tokens[i]].tokens;
      };
      std::size_t best = used;
      if (by_tokens.size() - i > parts_.size() - used) {
        for (std::size_t p = 0; p < used; ++p) {
          if (room(p) >= 0 && (best == used || room(p) < room(best))) best = p;
        }
        // No part has room for it: exchange() may repair the part that becomes too full.
        if (best == parts_.size()) best = 0;
      }
      if (best == used) ++used;
      parts_[best].load += loads_[by_tokens[i]];
      parts_[best].items.push_back(by_tokens[i]);
    }
    for (auto& part : parts_) {
      std::ranges::sort(part.items, [this](std::size_t a, std::size_t b) { return is_before(a, b); });
    }
  }

  /// Moves the cheapest items of parts that have more than min_items to parts that have fewer.
  void top_up() {
    if (order_.size() < parts_.size() * min_items_) return;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      while (parts_[p].items.size() < min_items_) {
        const auto rich = richest();
        move(rich, p, parts_[rich].items.back());
      }
    }
  }

  /// Exchanges items as long as that makes the costliest part cheaper. Keeps counts equal if `sizes` requires it, and
  /// at least min_items in the parts that have them.
  void exchange(PartSizes sizes, Search search = Search::quick) {
    const auto bound = lower_bound();
    const auto is_best = [&](const Part& part) { return level(part.load) <= bound; };
    if (std::ranges::all_of(parts_, is_best)) return;
    const bool has_runs = search == Search::thorough && sizes == PartSizes::any;
    ByCost by_cost;
    for (std::size_t p = 0; p < parts_.size(); ++p) by_cost.emplace(level(parts_[p].load), p);
    while (budget_ > 0) {
      const auto [max_level, dear] = *by_cost.rbegin();
      if (max_level <= bound) break;
      auto best = best_exchange(dear, by_cost, sizes);
      if (has_runs && (!best || best->gain <= max_level >> 12)) consider_runs(dear, by_cost, best);
      // A gain of less than 2^-24 is not worth the time.
      if (!best || (max_level < too_full && best->gain <= max_level >> 24)) break;
      by_cost.erase({max_level, dear});
      by_cost.erase({level(parts_[best->cheap].load), best->cheap});
      apply(dear, *best);
      by_cost.emplace(level(parts_[dear].load), dear);
      by_cost.emplace(level(parts_[best->cheap].load), best->cheap);
    }
  }

  /// Returns whether every part has min_items and none has too many tokens.
  bool fits() const {
    return std::ranges::all_of(
        parts_, [this](const Part& part) { return part.items.size() >= min_items_ && level(part.load) < too_full; });
  }

  Partition take() {
    LEVADA_ASSERT(holds_each_item_once(), "each item is in one part, and the load of a part is the sum of its items'");
    Partition partition;
    for (auto& part : parts_) {
      std::ranges::sort(part.items);
      partition.push_back(std::move(part.items));
    }
    std::ranges::stable_sort(partition, [](const auto& a, const auto& b) {
      if (a.empty() || b.empty()) return !a.empty() && b.empty();
      return a.front() < b.front();
    });
    return partition;
  }

 private:
  static constexpr bool is_scalar = std::is_same_v<Load, std::int64_t>;
  /// Bounds on the time: parts to compare with the costliest one, and exchanges to consider in total.
  static constexpr std::size_t max_tried = 64, max_tried_for_runs = 16;
  std::size_t run_budget_ = std::size_t{1} << 20;
  std::size_t budget_ = std::size_t{1} << (is_scalar ? 21 : 23);
  /// Items to consider around the best one: with two sums, a neighbor may be better.
  static constexpr std::ptrdiff_t reach = is_scalar ? 1 : 8;
  /// The level of a part with more than max_tokens, above the level of any part that fits.
  static constexpr std::int64_t too_full = std::int64_t{1} << 62;

  struct Part {
    Load load = {};
    std::vector<std::size_t> items;  ///< the costliest first
  };
  /// Moves one item of the costliest part to a cheap part, in exchange for some of its items or none.
  struct Exchange {
    std::size_t cheap = 0, given = 0;
    std::size_t taken = 0, num_taken = 0;  ///< a run of the cheap part's items
    std::int64_t gain = 0;                 ///< by which the higher of the two costs decreases
  };

  using ByCost = std::set<std::pair<std::int64_t, std::size_t>>;  ///< parts by their level

  bool holds_each_item_once() const {
    std::vector<std::size_t> held(loads_.size());
    for (const Part& part : parts_) {
      Load load = {};
      for (const std::size_t item : part.items) {
        ++held[item];
        load += loads_[item];
      }
      if (level(load) != level(part.load)) return false;
    }
    return std::ranges::all_of(held, [](std::size_t times) { return times == 1; });
  }

  static std::int64_t first_of(const Load& load) {
    if constexpr (is_scalar) return load;
    else return load.work.first;
  }
  static std::int64_t tokens_of(const Load& load) {
    if constexpr (is_scalar) return 0;
    else return load.tokens;
  }
  bool has_second() const {
    if constexpr (is_scalar) return false;
    else return std::ranges::any_of(loads_, [](const Load& load) { return load.work.second != 0; });
  }

  static Load sum(Load a, const Load& b) { return a += b; }
  static Load difference(Load a, const Load& b) { return a -= b; }

  /// Returns the number whose maximum over the parts is minimized.
  std::int64_t level(const Load& load) const {
    if constexpr (is_scalar) {
      return load;
    } else {
      if (load.tokens > max_tokens_) return too_full + (load.tokens - max_tokens_);
      return std::max(load.work.first, load.work.second);
    }
  }

  bool is_before(std::size_t a, std::size_t b) const {
    const auto of_a = level(loads_[a]), of_b = level(loads_[b]);
    return of_a != of_b ? of_a > of_b : a < b;
  }

  /// Returns the part with more than min_items whose cheapest item is the cheapest. Requires that such a part exists.
  std::size_t richest() const {
    std::size_t rich = parts_.size();
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      if (parts_[p].items.size() <= min_items_) continue;
      if (rich == parts_.size() || is_before(parts_[rich].items.back(), parts_[p].items.back())) rich = p;
    }
    return rich;
  }

  void add(std::size_t p, std::size_t item) {
    parts_[p].load += loads_[item];
    parts_[p].items.push_back(item);
  }

  /// Returns a level that at least one part must have.
  std::int64_t lower_bound() const {
    if (order_.empty()) return 0;
    Load all = {};
    for (const auto& load : loads_) all += load;
    const auto count = static_cast<std::int64_t>(parts_.size());
    const auto mean = [count](std::int64_t of_all) { return of_all / count + (of_all % count != 0); };
    std::int64_t bound = 0;
    if constexpr (is_scalar) bound = mean(all);
    else bound = std::max(mean(all.work.first), mean(all.work.second));
    return std::max(bound, level(loads_[order_.front()]));
  }

  /// Returns the best exchange of one item for one or none.
  std::optional<Exchange> best_exchange(std::size_t dear, const ByCost& by_cost, PartSizes sizes) {
    std::optional<Exchange> best;
    const auto max_level = level(parts_[dear].load);
    std::size_t tried = 0;
    for (const auto& [cost, cheap] : by_cost) {
      if (cheap == dear || tried++ == max_tried) break;
      consider(dear, cheap, sizes, best);
      // Half of the difference is the best possible gain, and nearly half is good enough.
      if (best && best->gain >= (max_level - cost) / 2 - (max_level - cost) / 8) break;
    }
    return best;
  }

  /// Replaces `best` if these two parts have a better exchange.
  void consider(std::size_t dear, std::size_t cheap, PartSizes sizes, std::optional<Exchange>& best) {
    const auto &from = parts_[dear], &to = parts_[cheap];
    const auto max_level = level(from.load), gap = max_level - level(to.load);
    const auto offer = [&](std::size_t given, std::size_t taken, std::size_t num_taken) {
      const auto moved = num_taken > 0 ? difference(loads_[given], loads_[to.items[taken]]) : loads_[given];
      const auto gain = gain_of(from, to, moved);
      if (gain > (best ? best->gain : 0)) best = {cheap, given, taken, num_taken, gain};
    };
    // For a part that is too full, consider every item, not only those that would equalize the work.
    const auto size = static_cast<std::ptrdiff_t>(to.items.size());
    const auto near = max_level < too_full ? reach : size;
    for (const auto given : from.items) {
      if (sizes == PartSizes::any && from.items.size() > min_items_) offer(given, 0, 0);
      // The best exchange moves half of the difference, so look around that.
      const auto wanted = level(loads_[given]) - gap / 2;
      const auto at = std::ranges::lower_bound(to.items, wanted, std::greater(),
                                               [this](std::size_t i) { return level(loads_[i]); }) -
                      to.items.begin();
      const auto end = std::min(size, at + near);
      for (auto i = std::max(std::ptrdiff_t{0}, at - near); i < end; ++i) {
        offer(given, static_cast<std::size_t>(i), 1);
      }
    }
    budget_ -= std::min(budget_, from.items.size() * static_cast<std::size_t>(std::min(size, 2 * near) + 1));
  }

  /// Replaces `best` if a cheap part has a better run of items to exchange.
  void consider_runs(std::size_t dear, const ByCost& by_cost, std::optional<Exchange>& best) {
    if constexpr (!is_scalar) {
      const auto max_level = level(parts_[dear].load);
      std::size_t tried = 0;
      for (const auto& [cost, cheap] : by_cost) {
        if (cheap == dear || tried++ == max_tried_for_runs || run_budget_ == 0) break;
        consider_runs(dear, cheap, best);
        if (best && best->gain >= (max_level - cost) / 4) break;
      }
    }
  }

  /// Considers each item in exchange for the shortest runs of cheaper items that make room for it: a part that is full
  /// of tokens has room for a long sample only after several short ones move out.
  void consider_runs(std::size_t dear, std::size_t cheap, std::optional<Exchange>& best) {
    const auto &from = parts_[dear], &to = parts_[cheap];
    for (const auto given : from.items) {
      const auto needed = to.load.tokens + loads_[given].tokens - max_tokens_;
      Load run = {};
      for (std::size_t begin = 0, end = 0; needed > 0; run -= loads_[to.items[begin++]]) {
        while (end < to.items.size() && run.tokens < needed) run += loads_[to.items[end++]];
        if (run.tokens < needed) break;
        if (to.items.size() - (end - begin) + 1 < min_items_) continue;
        const auto gain = gain_of(from, to, difference(loads_[given], run));
        if (gain > (best ? best->gain : 0)) best = {cheap, given, begin, end - begin, gain};
      }
    }
    run_budget_ -= std::min(run_budget_, 2 * from.items.size() * to.items.size());
  }

  /// Returns by how much the higher cost of two parts decreases if `moved` moves from one to the other.
  std::int64_t gain_of(const Part& from, const Part& to, const Load& moved) const {
    return level(from.load) - std::max(level(difference(from.load, moved)), level(sum(to.load, moved)));
  }

  void apply(std::size_t dear, const Exchange& exchange) {
    const auto run = std::span(parts_[exchange.cheap].items).subspan(exchange.taken, exchange.num_taken);
    const std::vector<std::size_t> taken(run.begin(), run.end());
    move(dear, exchange.cheap, exchange.given);
    for (const std::size_t item : taken) move(exchange.cheap, dear, item);
  }

  void move(std::size_t from, std::size_t to, std::size_t item) {
    const auto before = [this](std::size_t a, std::size_t b) { return is_before(a, b); };
    auto &source = parts_[from].items, &target = parts_[to].items;
    source.erase(std::ranges::lower_bound(source, item, before));
    target.insert(std::ranges::lower_bound(target, item, before), item);
    parts_[from].load -= loads_[item];
    parts_[to].load += loads_[item];
  }

  std::span<const Load> loads_;
  std::int64_t max_tokens_;
  std::size_t min_items_;
  std::vector<Part> parts_;
  std::vector<std::size_t> order_;  ///< all items, the costliest first
};

/// Returns the ends of runs that cost at most `max_cost`, each as long as possible; empty if `parts` such runs do not
/// suffice.
std::vector<std::size_t> cut(std::span<const std::int64_t> costs, std::size_t parts, std::int64_t max_cost) {
  std::vector<std::size_t> ends;
  std::size_t at = 0;
  for (std::size_t p = 0; p < parts; ++p) {
    const std::size_t stop = costs.size() - (parts - p - 1);  // one item for each later part
    std::int64_t sum = 0;
    while (at < stop && costs[at] <= max_cost - sum) sum += costs[at++];
    if (ends.empty() ? at == 0 : at == ends.back()) return {};
    ends.push_back(at);
  }
  return at == costs.size() ? ends : std::vector<std::size_t>{};
}

}  // namespace

Partition partition_by_cost(std::span<const std::int64_t> costs, std::size_t parts, PartSizes sizes) {
  check(costs, parts);
  Balancer<std::int64_t> balancer(costs, parts);
  if (sizes == PartSizes::any) {
    balancer.fill();
  } else if (costs.size() < parts) {
    throw InvalidArgument(fmt::format("{} items cannot be divided over {} parts of equal counts", costs.size(), parts));
  } else {
    balancer.fill_equally();
  }
  balancer.exchange(sizes);
  return balancer.take();
}

std::optional<Partition> partition_within(std::span<const Demand> demands, std::size_t parts, std::int64_t max_tokens,
                                          PartSizes sizes, std::size_t min_items, Search search) {
  if (parts == 0 || demands.size() / parts < min_items) return {};
  const auto divide = [&](void (Balancer<Demand>::*fill)()) -> std::optional<Partition> {
    Balancer<Demand> balancer(demands, parts, max_tokens, min_items);
    (balancer.*fill)();
    balancer.top_up();
    if (search != Search::none) balancer.exchange(sizes, search);
    if (!balancer.fits()) return {};
    return balancer.take();
  };
  if (sizes == PartSizes::equal) return divide(&Balancer<Demand>::fill_equally);
  if (auto found = divide(&Balancer<Demand>::fill)) return found;
  return divide(&Balancer<Demand>::fill_tightly);
}

Partition partition_in_order(std::span<const std::int64_t> costs, std::size_t parts) {
  check(costs, parts);
  if (costs.size() < parts) {
    throw InvalidArgument(fmt::format("{} items cannot be cut into {} runs", costs.size(), parts));
  }
  std::int64_t low = 0;
  std::int64_t high = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (cut(costs, parts, middle).empty()) low = middle + 1;
    else high = middle;
  }
  Partition partition;
  std::size_t begin = 0;
  for (const std::size_t end : cut(costs, parts, low)) {
    auto& part = partition.emplace_back(end - begin);
    std::iota(part.begin(), part.end(), begin);
    begin = end;
  }
  return partition;
}

Work work_of(std::span<const std::size_t> items, std::span<const Demand> demands) {
  Work work;
  for (const std::size_t item : items) {
    work.first += demands[item].work.first;
    work.second += demands[item].work.second;
  }
  return work;
}

std::int64_t busiest_of(const Partition& parts, std::span<const Demand> demands) {
  std::int64_t level = 0;
  for (const auto& items : parts) level = std::max(level, level_of(work_of(items, demands)));
  return level;
}

std::vector<std::int64_t> costs_by_part(const Partition& partition, std::span<const std::int64_t> costs) {
  std::vector<std::int64_t> sums;
  for (const auto& part : partition) {
    auto& sum = sums.emplace_back(0);
    for (const std::size_t item : part) sum += costs[item];
  }
  return sums;
}

}  // namespace levada
