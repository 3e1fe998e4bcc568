#include "levada/plan/columns.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "levada/plan/work_bound.h"

namespace levada {
namespace {

Work sum_of(Work a, const Work& b) {
  return {a.first + b.first, a.second + b.second};
}

std::int64_t waiting_of(const Columns& columns, std::span<const Demand> demands) {
  std::int64_t waiting = 0;
  for (const Partition& column : columns) waiting += busiest_of(column, demands);
  return waiting;
}

class ColumnPlanner {
 public:
  ColumnPlanner(std::span<const Demand> demands, std::size_t ranks, std::size_t count, std::int64_t max_tokens)
      : demands_(demands), ranks_(ranks), count_(count), max_tokens_(max_tokens) {
    by_level_.resize(demands.size());
    std::iota(by_level_.begin(), by_level_.end(), std::size_t{0});
    by_tokens_ = by_level_;
    std::ranges::stable_sort(by_level_, std::greater(), [&](std::size_t item) { return level_of(demands[item].work); });
    std::ranges::stable_sort(by_tokens_, std::greater(), [&](std::size_t item) { return demands[item].tokens; });
  }

  std::optional<Columns> best() const {
    const auto ranks = static_cast<std::int64_t>(ranks_);
    const auto bound = std::max(waiting_bound(demands_, &Work::first, ranks, max_tokens_),
                                waiting_bound(demands_, &Work::second, ranks, max_tokens_));
    std::optional<Columns> best;
    std::int64_t min_waiting = INT64_MAX;
    for (std::size_t filled = 0; filled < std::min(count_, max_filled + 1); ++filled) {
      for (const std::int64_t excess : excesses) {
        // At most a thousandth is left to gain.
        if (min_waiting - bound <= bound >> 10) return best;
        if (auto columns = divide(filled, excess)) {
          if (const auto waiting = waiting_of(*columns, demands_); waiting < min_waiting) {
            best = std::move(columns);
            min_waiting = waiting;
          }
        }
        if (filled == 0) break;
      }
    }
    return best;
  }

 private:
  static constexpr std::size_t max_filled = 3;
  static constexpr std::int64_t unlimited = -1;
  /// Percentages by which a rank's work in a filled column may exceed the column's costliest item.
  static constexpr std::int64_t excesses[] = {0, 10, 25, unlimited};

  /// Fills `filled` columns, one after another, and divides the rest evenly over the others.
  std::optional<Columns> divide(std::size_t filled, std::int64_t excess) const {
    auto left = by_level_;
    Columns columns;
    for (std::size_t number = 0; number < filled; ++number) {
      // Each later micro-batch needs at least one item on each rank.
      const auto kept = ranks_ * (count_ - number - 1);
      if (left.size() < kept + ranks_) return {};
      const auto costliest = level_of(demands_[left.front()].work);
      const auto limit = excess == unlimited ? INT64_MAX : costliest + costliest / 100 * excess;
      auto column = fill(std::span(left).first(left.size() - kept), limit);
      if (!column) return {};
      std::vector<char> is_taken(demands_.size());
      for (const auto& of_rank : *column) {
        for (const std::size_t item : of_rank) is_taken[item] = 1;
      }
      std::erase_if(left, [&](std::size_t item) { return is_taken[item] != 0; });
      columns.push_back(*std::move(column));
    }
    if (!divide_evenly(left, count_ - filled, columns)) return {};
    assign_ranks(columns);
    return columns;
  }

  /// Fills one micro-batch on each rank with the longest items that fit (best-fit decreasing), as long as no rank has
  /// more work than `limit`. Returns nothing if a rank would have no item.
  std::optional<Partition> fill(std::span<const std::size_t> items, std::int64_t limit) const {
    std::vector<char> may_be_taken(demands_.size());
    for (const std::size_t item : items) may_be_taken[item] = 1;
    Partition column(ranks_);
    std::vector<Work> works(ranks_);
    std::set<std::pair<std::int64_t, std::size_t>> rooms;
    for (std::size_t rank = 0; rank < ranks_; ++rank) rooms.emplace(max_tokens_, rank);
    for (const std::size_t item : by_tokens_) {
      if (!may_be_taken[item]) continue;
      const auto& [work, tokens] = demands_[item];
      auto at = rooms.lower_bound({tokens, 0});
      while (at != rooms.end() && level_of(sum_of(works[at->second], work)) > limit) ++at;
      if (at == rooms.end()) continue;
      const auto [room, rank] = *at;
      rooms.erase(at);
      rooms.emplace(room - tokens, rank);
      column[rank].push_back(item);
      works[rank] = sum_of(works[rank], work);
    }
    if (std::ranges::any_of(column, &std::vector<std::size_t>::empty)) return {};
    return column;
  }

  /// Appends columns of micro-batches with equal work. Groups those with the most work, since ranks wait for the
  /// costliest.
  bool divide_evenly(const std::vector<std::size_t>& items, std::size_t count, Columns& columns) const {
    if (items.size() < count * ranks_) return false;
    std::vector<Demand> demands;
    for (const std::size_t item : items) demands.push_back(demands_[item]);
    auto parts = partition_within(demands, count * ranks_, max_tokens_, PartSizes::any, 1, Search::none);
    if (!parts) return false;
    for (auto& part : *parts) {
      for (std::size_t& item : part) item = items[item];
    }
    sort_by_work(*parts);
    for (std::size_t number = 0; number < count; ++number) {
      const auto begin = std::make_move_iterator(parts->begin() + static_cast<std::ptrdiff_t>(number * ranks_));
      columns.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(ranks_));
    }
    return true;
  }

  /// Sorts by work, the costliest first.
  void sort_by_work(Partition& parts) const {
    std::ranges::stable_sort(parts, std::greater(),
                             [&](const auto& items) { return level_of(work_of(items, demands_)); });
  }

  /// Assigns the costliest micro-batch of each column to the rank with the least work so far.
  void assign_ranks(Columns& columns) const {
    std::vector<Work> works(ranks_);
    for (Partition& column : columns) {
      sort_by_work(column);
      std::vector<std::size_t> ranks(ranks_);
      std::iota(ranks.begin(), ranks.end(), std::size_t{0});
      std::ranges::stable_sort(ranks, {}, [&](std::size_t rank) { return level_of(works[rank]); });
      Partition assigned(ranks_);
      for (std::size_t i = 0; i < ranks_; ++i) {
        works[ranks[i]] = sum_of(works[ranks[i]], work_of(column[i], demands_));
        std::ranges::sort(column[i]);
        assigned[ranks[i]] = std::move(column[i]);
      }
      column = std::move(assigned);
    }
  }

  std::span<const Demand> demands_;
  std::size_t ranks_, count_;
  std::int64_t max_tokens_;
  std::vector<std::size_t> by_level_, by_tokens_;  ///< items, the costliest and the longest first
};

}  // namespace

std::optional<Columns> columns_within(std::span<const Demand> demands, std::size_t ranks, std::size_t count,
                                      std::int64_t max_tokens) {
  return ColumnPlanner(demands, ranks, count, max_tokens).best();
}

}  // namespace levada
