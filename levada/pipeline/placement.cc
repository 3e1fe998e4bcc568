#include "levada/pipeline/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "levada/base/error.h"
#include "levada/pipeline/open_context.h"

namespace levada::pipeline {
namespace {

int lowest_cut(const Reachability& reach, const std::vector<int>& stages) {
  for (int stage = 0; stage < reach.size(); ++stage) {
    const auto reaches = [&](int mark) { return reach.is_or_feeds(mark, stage); };
    if (std::ranges::all_of(stages, reaches) && reach.can_cut_after(stage)) return stage;
  }
  return reach.size() - 1;
}

/// A repeat restarts the stages before it, so it must run in the same process.
std::vector<int> with_repeats(const Reachability& reach, const std::vector<int>& marks) {
  auto all = marks;
  for (const int repeat : reach.all<Repeat>()) {
    if (std::ranges::any_of(marks, [&](int mark) { return reach.feeds(mark, repeat); })) all.push_back(repeat);
  }
  return all;
}

std::optional<int> find_last_dispatched(const Reachability& reach) {
  const auto marks = reach.all<Dispatch>();
  if (marks.empty()) return std::nullopt;
  return lowest_cut(reach, with_repeats(reach, marks));
}

/// Places the stages of one graph.
class Placer {
 public:
  Placer(const Graph& graph, bool ordered) : graph_(graph), reach_(graph), ordered_(ordered) {}

  Placement run() {
    Placement placement;
    check_repeats();
    placement.dispatch_boundary = dispatch_boundary_ = find_dispatch_boundary();
    placement.collect_boundary = find_collect_boundary();
    for (int stage = 0; stage < reach_.size(); ++stage) {
      placement.role_of.push_back(dispatch_boundary_ && reach_.is_or_feeds(stage, *dispatch_boundary_)
                                      ? Role::dispatcher
                                  : reach_.is_or_feeds(stage, *placement.collect_boundary) ? Role::worker
                                                                                           : Role::consumer);
    }
    check_branches(placement);
    placement.one_to_one = is_one_to_one(*placement.collect_boundary);
    return placement;
  }

 private:
  bool needs_all_ranks(int stage) const { return reach_.is<FullSync>(stage) || reach_.follows<FullSync>(stage); }

  std::optional<int> find_dispatch_boundary() const {
    if (const auto lowest = find_last_dispatched(reach_)) {
      check_no_full_sync(*lowest);
      return lowest;
    }
    if (!ordered_) return std::nullopt;
    auto shards = reach_.all<Shard>();
    std::erase_if(shards, [&](int shard) { return needs_all_ranks(shard); });
    for (const int cache : reach_.all<Cache>()) {
      if (!needs_all_ranks(cache)) shards.push_back(cache);
    }
    if (shards.empty()) return largest_part();
    const int lowest = lowest_cut(reach_, with_repeats(reach_, shards));
    return needs_all_ranks(lowest) ? largest_part() : lowest;
  }

  void check_repeats() const {
    for (const int repeat : reach_.all<Repeat>()) {
      if (!reach_.follows<FullSync>(repeat)) continue;
      throw InvalidArgument(
          fmt::format("stage \"{}\" cannot repeat stages that run in workers and on all ranks; put it before \"{}\"",
                      graph_.stage(repeat).name, graph_.stage(reach_.all<FullSync>().front()).name));
    }
  }

  void check_no_full_sync(int dispatch_boundary) const {
    for (const int stage : reach_.all<FullSync>()) {
      if (!reach_.is_or_feeds(stage, dispatch_boundary)) continue;
      throw InvalidArgument(fmt::format(
          "stage \"{}\" needs all ranks and so runs in the consumer, but feeds \"{}\", which the dispatching process "
          "runs; put it after the last dispatch",
          graph_.stage(stage).name, graph_.stage(dispatch_boundary).name));
    }
  }

  int find_collect_boundary() const {
    if (!dispatch_boundary_) return largest_part();
    int collect_boundary = *dispatch_boundary_;
    for (int stage = *dispatch_boundary_ + 1; stage < reach_.size(); ++stage) {
      const bool behind = reach_.feeds(*dispatch_boundary_, stage) && !needs_all_ranks(stage);
      if (behind && reach_.can_cut_after(stage) && (!ordered_ || keeps_order(stage))) collect_boundary = stage;
    }
    return collect_boundary;
  }

  /// For a graph without a dispatching process: returns the stage with the most predecessors among those that do not
  /// need other ranks.
  int largest_part() const {
    int largest = -1, max_before = 0;
    for (int stage = 0; stage < reach_.size(); ++stage) {
      if (needs_all_ranks(stage) || reach_.precedes<Repeat>(stage) || !reach_.can_cut_after(stage)) continue;
      if (const int count = reach_.count_before(stage); count > max_before) {
        largest = stage;
        max_before = count;
      }
    }
    if (largest >= 0) return largest;
    throw InvalidArgument(
        fmt::format("no stage can run in a worker: all must run in one process with \"{}\", which needs all ranks",
                    graph_.stage(reach_.all<FullSync>().front()).name));
  }

  /// Returns whether `holds` is true for all stages that workers would run if they ran up to `collect_boundary`, with
  /// items from `from`.
  template <typename Predicate>
  bool all_between(int from, int collect_boundary, const Predicate& holds) const {
    for (int stage = 0; stage <= collect_boundary; ++stage) {
      const bool inside = reach_.is_or_feeds(stage, collect_boundary) && !reach_.is_or_feeds(stage, from);
      if (inside && !holds(stage)) return false;
    }
    return true;
  }

  const Map* map_at(int stage) const { return std::get_if<Map>(&graph_.stage(stage).operation); }

  bool keeps_order(int collect_boundary) const {
    const auto item_wise = [&](int stage) {
      // A map with threads pulls items ahead, so its items have later marks unless all stages are one-to-one.
      const auto* map = map_at(stage);
      return (map != nullptr && map->threads == 0) || reach_.is<Filter>(stage) || reach_.is<FlatMap>(stage) ||
             reach_.is<Unbatch>(stage);
    };
    return all_between(*dispatch_boundary_, collect_boundary, item_wise) ||
           makes_one_each(*dispatch_boundary_, collect_boundary);
  }

  /// Returns whether each item of `from` becomes one of `collect_boundary`, without state in between.
  bool makes_one_each(int from, int collect_boundary) const {
    return all_between(from, collect_boundary, [&](int stage) {
      if (!reach_.feeds(from, stage)) return false;
      const auto* map = map_at(stage);
      return (map != nullptr && map->on_error == OnError::raise) || reach_.is<Fork>(stage) ||
             reach_.is<Branch>(stage) || reach_.is<Zip>(stage) || reach_.is<Cache>(stage) || reach_.is<Prefetch>(stage);
    });
  }

  bool is_one_to_one(int collect_boundary) const {
    if (dispatch_boundary_) return makes_one_each(*dispatch_boundary_, collect_boundary);
    auto shards = reach_.all<Shard>();
    std::erase_if(shards, [&](int shard) { return !reach_.is_or_feeds(shard, collect_boundary); });
    return shards.size() == 1 && reach_.can_cut_after(shards.front()) && divides_in_turns(shards.front()) &&
           makes_one_each(shards.front(), collect_boundary);
  }
  bool divides_in_turns(int shard) const {
    if (!divides_at_source(graph_, shard)) return true;
    const int before = graph_.stage(shard).inputs.front();
    return std::get<Source>(graph_.stage(before).operation).items->divides_in_turns();
  }

  void check_branches(const Placement& placement) const {
    if (!dispatch_boundary_) return;
    const auto undivided = undivided_sources();
    for (const int branch : sibling_branches(graph_, *dispatch_boundary_)) {
      const int source = undivided[static_cast<std::size_t>(branch)];
      if (source < 0 || placement.role_of[static_cast<std::size_t>(branch)] != Role::worker) continue;
      throw InvalidArgument(fmt::format(
          "stage \"{}\" is on a branch next to dispatch \"{}\", and no shard divides the items of \"{}\": each "
          "worker would yield all of them; put a shard or a dispatch after \"{}\"",
          graph_.stage(branch).name, graph_.stage(*dispatch_boundary_).name, graph_.stage(source).name,
          graph_.stage(source).name));
    }
  }

  /// Returns, per stage, a source whose items reach it through no shard; -1: none.
  std::vector<int> undivided_sources() const {
    std::vector<int> found;
    for (int stage = 0; stage < reach_.size(); ++stage) {
      found.push_back(reach_.is<Source>(stage) ? stage : -1);
      if (reach_.is<Shard>(stage)) continue;
      for (const int input : reach_.inputs(stage)) {
        found.back() = std::max(found.back(), found[static_cast<std::size_t>(input)]);
      }
    }
    return found;
  }

  const Graph& graph_;
  const Reachability reach_;
  const bool ordered_;
  std::optional<int> dispatch_boundary_;
};

}  // namespace

Reachability::Reachability(const Graph& graph) : graph_(graph), leaving_(graph.stages().size()) {
  const auto& stages = graph.stages();
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    std::vector<bool> before(stages.size(), false);
    before[stage] = true;
    for (const int input : stages[stage].inputs) {
      const auto& further = before_[static_cast<std::size_t>(input)];
      for (std::size_t i = 0; i < stage; ++i) before[i] = before[i] || further[i];
      leaving_[static_cast<std::size_t>(input)].push_back(static_cast<int>(stage));
    }
    before_.push_back(std::move(before));
    for (const int other : stages[stage].colocated) leaving_[stage].push_back(other);
  }
}

int Reachability::count_before(int stage) const {
  const auto& before = before_[static_cast<std::size_t>(stage)];
  return static_cast<int>(std::ranges::count(before, true));
}

bool Reachability::can_cut_after(int stage) const {
  if (leaving_[static_cast<std::size_t>(stage)].size() > 1 || is<Fork>(stage)) return false;
  for (int inner = 0; inner < stage; ++inner) {
    if (!feeds(inner, stage)) continue;
    const auto& edges = leaving_[static_cast<std::size_t>(inner)];
    if (!std::ranges::all_of(edges, [&](int to) { return is_or_feeds(to, stage); })) return false;
  }
  return true;
}

std::string_view to_string(Role role) {
  constexpr std::array<std::string_view, 3> names = {"dispatcher", "worker", "consumer"};
  return names[static_cast<std::size_t>(role)];
}

Placement place(const Graph& graph, int workers, bool ordered) {
  if (workers < 0) throw InvalidArgument(fmt::format("a pipeline cannot have {} workers", workers));
  if (workers == 0) return {.role_of = std::vector<Role>(graph.stages().size(), Role::consumer)};
  return Placer(graph, ordered).run();
}

std::optional<int> last_dispatched(const Graph& graph) {
  return find_last_dispatched(Reachability(graph));
}

int lowest_common_ancestor(const Graph& graph, const std::vector<int>& stages) {
  return lowest_cut(Reachability(graph), stages);
}

std::vector<int> sibling_branches(const Graph& graph, int stage) {
  const Reachability reach(graph);
  std::vector<bool> beside(static_cast<std::size_t>(reach.size()), false);
  for (int after = stage + 1; after < reach.size(); ++after) {
    if (!reach.feeds(stage, after)) continue;
    for (const int input : reach.inputs(after)) {
      const bool apart = !reach.is_or_feeds(stage, input) && !reach.is_or_feeds(input, stage);
      if (apart) beside[static_cast<std::size_t>(input)] = true;
    }
  }
  std::vector<int> lowest;
  for (int i = 0; i < reach.size(); ++i) {
    if (beside[static_cast<std::size_t>(i)]) lowest.push_back(i);
  }
  return lowest;
}

}  // namespace levada::pipeline
