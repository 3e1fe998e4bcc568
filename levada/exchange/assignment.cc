#include "levada/exchange/assignment.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

namespace levada {
namespace {

using Loads = std::vector<std::uint64_t>;
using Sources = std::vector<std::vector<int>>;

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

/// Returns the choices with the most bytes first; among equals, those with the fewest sources.
std::vector<std::uint32_t> longest_first(const std::vector<SendChoice>& choices, const Sources& sources) {
  std::vector<std::uint32_t> order(choices.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) {
    const SendChoice &x = choices[a], &y = choices[b];
    if (x.bytes != y.bytes) return x.bytes > y.bytes;
    if (x.sources != y.sources) {
      const auto &p = sources[x.sources], &q = sources[y.sources];
      return p.size() != q.size() ? p.size() < q.size() : x.sources < y.sources;
    }
    return x.order < y.order;
  });
  return order;
}

/// Finds the least loaded rank of each list. Loads only grow, so a stale heap entry is pushed again when it is popped.
class LeastLoaded {
 public:
  LeastLoaded(const Sources& sources, const Loads& loads) : loads_(loads), heaps_(sources.size()) {
    for (std::size_t list = 0; list < sources.size(); ++list) {
      for (const int rank : sources[list]) heaps_[list].emplace(loads[at(rank)], rank);
    }
  }
  int take(std::uint32_t list) {
    auto& heap = heaps_[list];
    for (;;) {
      const auto [load, rank] = heap.top();
      if (load == loads_[at(rank)]) return rank;
      heap.pop();
      heap.emplace(loads_[at(rank)], rank);
    }
  }

 private:
  const Loads& loads_;
  std::vector<
      std::priority_queue<std::pair<std::uint64_t, int>, std::vector<std::pair<std::uint64_t, int>>, std::greater<>>>
      heaps_;
};

/// Returns a lower bound on the busiest load of any assignment: the maximum of the initial loads, the choices, and the
/// mean load of each group of ranks that share lists.
std::uint64_t lower_bound(const std::vector<SendChoice>& choices, const Sources& sources, const Loads& anyway) {
  std::vector<std::size_t> group(anyway.size());
  std::iota(group.begin(), group.end(), std::size_t{0});
  const auto root = [&](std::size_t rank) {
    while (group[rank] != rank) rank = group[rank] = group[group[rank]];
    return rank;
  };
  for (const auto& list : sources) {
    for (const int rank : list) group[root(at(rank))] = root(at(list.front()));
  }
  std::vector<std::uint64_t> sums(anyway.size(), 0), counts(anyway.size(), 0);
  std::uint64_t bound = 0;
  for (std::size_t rank = 0; rank < anyway.size(); ++rank) {
    sums[root(rank)] += anyway[rank];
    ++counts[root(rank)];
    bound = std::max(bound, anyway[rank]);
  }
  for (const SendChoice& choice : choices) {
    sums[root(at(sources[choice.sources].front()))] += choice.bytes;
    bound = std::max(bound, choice.bytes);
  }
  for (std::size_t rank = 0; rank < sums.size(); ++rank) {
    if (counts[rank] != 0) bound = std::max(bound, (sums[rank] + counts[rank] - 1) / counts[rank]);
  }
  return bound;
}

/// Numbers moved per step: a cache line.
constexpr std::size_t numbers_per_step = 16;

/// Improves an assignment move by move. Choices of one rank and one list are adjacent, ascending by bytes.
class LocalSearch {
 public:
  LocalSearch(const std::vector<SendChoice>& choices, const Sources& sources, std::vector<int>& senders, Loads& loads,
              std::uint64_t steps)
      : choices_(choices), sources_(sources), senders_(senders), loads_(loads), held_(loads.size()), steps_(steps) {
    for (const std::uint32_t each : ascending()) held_[at(senders_[each])][choices_[each].sources].push_back(each);
  }

  void run(std::uint64_t bound) {
    for (;;) {
      const auto busiest = static_cast<int>(std::ranges::max_element(loads_) - loads_.begin());
      const std::uint64_t max_load = loads_[at(busiest)];
      // Closing the last thousandth to the bound is not worth the time.
      if (max_load <= bound + bound / 1000 || steps_ == 0) return;
      spend(loads_.size());
      if (!move(busiest)) return;
    }
  }

 private:
  using ChoiceList = std::vector<std::uint32_t>;

  std::vector<std::uint32_t> ascending() const {
    auto order = longest_first(choices_, sources_);
    std::ranges::reverse(order);
    return order;
  }
  std::uint64_t bytes(std::uint32_t choice) const { return choices_[choice].bytes; }
  void spend(std::uint64_t steps) { steps_ -= std::min(steps_, steps); }

  /// Returns the first choice that has at least this many bytes.
  ChoiceList::const_iterator at_least(const ChoiceList& held, std::uint64_t min_bytes) const {
    return std::ranges::lower_bound(held, min_bytes, {}, [this](std::uint32_t each) { return bytes(each); });
  }

  void give(std::uint32_t choice, int to) {
    const int from = senders_[choice];
    ChoiceList& left = held_[at(from)][choices_[choice].sources];
    const auto first = at_least(left, bytes(choice));
    const auto found = std::find(first, left.cend(), choice);
    spend(static_cast<std::uint64_t>(found - first) + left.size() / numbers_per_step);
    left.erase(found);
    ChoiceList& right = held_[at(to)][choices_[choice].sources];
    spend(right.size() / numbers_per_step);
    right.insert(at_least(right, bytes(choice)), choice);
    loads_[at(from)] -= bytes(choice);
    loads_[at(to)] += bytes(choice);
    senders_[choice] = to;
  }

  /// Makes the single move that best balances the busiest rank and another; returns false if none helps.
  bool move(int busiest) {
    const std::uint64_t max_load = loads_[at(busiest)];
    std::uint64_t best = max_load;
    std::optional<std::pair<std::uint32_t, int>> chosen;
    for (const auto& [list, held] : held_[at(busiest)]) {
      for (const int to : sources_[list]) {
        spend(8);
        if (loads_[at(to)] >= max_load || held.empty()) continue;
        const auto near = at_least(held, (max_load - loads_[at(to)]) / 2);
        for (auto it = near == held.begin() ? near : near - 1; it != held.end() && it <= near; ++it) {
          const std::uint64_t worse = std::max(max_load - bytes(*it), loads_[at(to)] + bytes(*it));
          if (worse < best) {
            best = worse;
            chosen = {*it, to};
          }
        }
      }
    }
    if (chosen) give(chosen->first, chosen->second);
    return chosen.has_value();
  }

  const std::vector<SendChoice>& choices_;
  const Sources& sources_;
  std::vector<int>& senders_;
  Loads& loads_;
  std::vector<std::map<std::uint32_t, ChoiceList>> held_;  ///< by rank, then by list
  std::uint64_t steps_;
};

/// Depth-first search over all assignments that could beat the best known one, until one is good enough.
class BranchAndBound {
 public:
  BranchAndBound(const std::vector<SendChoice>& choices, const Sources& sources, const Loads& anyway,
                 std::vector<int>& best, std::uint64_t best_load, std::uint64_t enough, std::uint64_t steps)
      : choices_(choices),
        sources_(sources),
        order_(longest_first(choices, sources)),
        loads_(anyway),
        now_(best),
        best_(best),
        best_load_(best_load),
        enough_(enough),
        steps_(steps) {}

  void run() { descend(0); }

 private:
  void descend(std::size_t depth) {
    if (steps_ == 0 || best_load_ <= enough_) return;
    --steps_;
    if (depth == order_.size()) {
      best_ = now_;
      best_load_ = std::ranges::max(loads_);
      return;
    }
    const std::uint32_t choice = order_[depth];
    auto ranks = sources_[choices_[choice].sources];
    std::ranges::stable_sort(ranks, {}, [this](int rank) { return loads_[at(rank)]; });
    for (const int rank : ranks) {
      if (loads_[at(rank)] + choices_[choice].bytes >= best_load_) break;  // the remaining ranks are more loaded
      loads_[at(rank)] += choices_[choice].bytes;
      now_[choice] = rank;
      descend(depth + 1);
      loads_[at(rank)] -= choices_[choice].bytes;
    }
  }

  const std::vector<SendChoice>& choices_;
  const Sources& sources_;
  std::vector<std::uint32_t> order_;
  Loads loads_;
  std::vector<int> now_;
  std::vector<int>& best_;
  std::uint64_t best_load_;
  std::uint64_t enough_;
  std::uint64_t steps_;
};

}  // namespace

std::vector<int> assign_senders(const std::vector<SendChoice>& choices, const Sources& source_lists, Loads loads,
                                const AssignmentLimits& limits) {
  const Loads anyway = loads;
  std::vector<int> senders(choices.size());
  LeastLoaded least_loaded(source_lists, loads);
  for (const std::uint32_t each : longest_first(choices, source_lists)) {
    const int rank = least_loaded.take(choices[each].sources);
    senders[each] = rank;
    loads[at(rank)] += choices[each].bytes;
  }
  if (choices.empty()) return senders;
  const std::uint64_t bound = lower_bound(choices, source_lists, anyway);
  // Within a hundredth of the bound, no gain would be noticeable.
  if (std::ranges::max(loads) <= bound + bound / 100) return senders;
  LocalSearch(choices, source_lists, senders, loads, limits.search_steps).run(bound);
  const std::uint64_t max_load = std::ranges::max(loads);
  const bool few = choices.size() <= limits.exact_choices;
  const std::uint64_t enough = few ? bound : bound + bound / 10;
  if (max_load > enough && choices.size() <= limits.searched_choices) {
    BranchAndBound(choices, source_lists, anyway, senders, max_load, enough, limits.exact_steps).run();
  }
  return senders;
}

}  // namespace levada
