// Assigns stages to processes: a function of the graph only.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "levada/pipeline/graph.h"

namespace levada::pipeline {

/// Determines which stages of `graph` feed which others. Borrows the graph.
class Reachability {
 public:
  explicit Reachability(const Graph& graph);

  int size() const { return static_cast<int>(before_.size()); }
  /// Returns whether `stage` is `other` or feeds it.
  bool is_or_feeds(int stage, int other) const {
    return before_[static_cast<std::size_t>(other)][static_cast<std::size_t>(stage)];
  }
  bool feeds(int stage, int other) const { return stage != other && is_or_feeds(stage, other); }
  /// Returns the number of stages that feed `stage`, itself included.
  int count_before(int stage) const;
  /// Returns whether only the edges that leave `stage` connect the stages up to it with the others.
  bool can_cut_after(int stage) const;
  /// Return whether any stage that feeds `stage`, or that it feeds, is a T.
  template <typename T>
  bool follows(int stage) const {
    for (int other = 0; other < stage; ++other) {
      if (feeds(other, stage) && is<T>(other)) return true;
    }
    return false;
  }
  template <typename T>
  bool precedes(int stage) const {
    for (int other = stage + 1; other < size(); ++other) {
      if (feeds(stage, other) && is<T>(other)) return true;
    }
    return false;
  }
  template <typename T>
  bool is(int stage) const {
    return std::holds_alternative<T>(graph_.stage(stage).operation);
  }
  /// Returns the stages that are a T.
  template <typename T>
  std::vector<int> all() const {
    std::vector<int> found;
    for (int stage = 0; stage < size(); ++stage) {
      if (is<T>(stage)) found.push_back(stage);
    }
    return found;
  }
  const std::vector<int>& inputs(int stage) const { return graph_.stage(stage).inputs; }

 private:
  const Graph& graph_;
  std::vector<std::vector<bool>> before_;  ///< before_[b][a]: a is b or feeds it
  std::vector<std::vector<int>> leaving_;  ///< per stage, the stages that its edges lead to, colocated ones included
};

/// The processes of a pipeline on one rank. The consumer is the caller's process.
enum class Role : std::uint8_t { dispatcher, worker, consumer };
/// Returns "dispatcher", ...
std::string_view to_string(Role role);

/// The assignment of stages to processes. With workers, stages run in up to three places, separated by two edges: items
/// of stage `dispatch_boundary` are sent from the dispatching process to the workers in turn, and those of stage
/// `collect_boundary` from the workers to the consumer. No other edge crosses processes. Without workers the consumer
/// runs all stages.
struct Placement {
  std::vector<Role> role_of;             ///< by stage
  std::optional<int> dispatch_boundary;  ///< the last stage in the dispatching process; none: there is no such process
  /// The last stage in the workers: `dispatch_boundary` if they only forward items; none: no workers.
  std::optional<int> collect_boundary;
  /// Whether each dispatched item (or, without a dispatch, each item that the only shard keeps) becomes one collected
  /// item, and no stage in the workers depends on earlier items. The workers' items, taken in turns, then have the
  /// order of one process.
  bool one_to_one = true;

  bool operator==(const Placement&) const = default;
};

/// Places the stages. The lowest common ancestor of all dispatch marks, with everything that feeds it, runs in the
/// dispatching process. The stages after it, and branches that it does not feed, are copied into each worker. A stage
/// that needs all ranks (FullSync), the stages after it, and branches that feed only those run in the consumer.
///
/// A repeat after a mark counts as a mark, because its input must run in the same process.
///
/// With `ordered`, items keep the order of a single process. To that end, workers run only stages that are one-to-one
/// or work item by item (map, filter, flat_map, unbatch), and the consumer runs the rest. If there is no mark, shards
/// and caches count as marks; if there are none of these either, the workers only forward items.
///
/// Throws InvalidArgument, naming the stages, for a branch next to a mark that no shard divides, and for a stage that
/// needs all ranks before a mark or a repeat.
Placement place(const Graph& graph, int workers, bool ordered = false);

/// Returns the last stage of the dispatching process if there are workers; nothing without dispatch marks.
std::optional<int> last_dispatched(const Graph& graph);
/// Returns the lowest stage that all of `stages` are or feed, and after which the graph can be cut: no stage that feeds
/// it feeds anything else. The cut therefore includes the siblings of a forked stage and keeps colocated stages
/// together. The end of the graph always qualifies.
int lowest_common_ancestor(const Graph& graph, const std::vector<int>& stages);
/// Returns the lowest stages of branches that neither feed `stage` nor are fed by it.
std::vector<int> sibling_branches(const Graph& graph, int stage);

}  // namespace levada::pipeline
