// Which process runs which stage: a function of the graph alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "levada/pipeline/graph.h"

namespace levada::pipeline {

/// A snapshot of `graph`, which outlives it.
class Reachability {
 public:
  explicit Reachability(const Graph& graph);

  int size() const { return static_cast<int>(before_.size()); }
  /// Whether `stage` is `other` or items of it reach `other`.
  bool is_or_feeds(int stage, int other) const {
    return before_[static_cast<std::size_t>(other)][static_cast<std::size_t>(stage)];
  }
  bool feeds(int stage, int other) const { return stage != other && is_or_feeds(stage, other); }
  /// How many stages `stage` is or is fed by.
  int count_before(int stage) const;
  /// Whether the stages up to `stage` are tied to the others by one edge at most, that which leaves `stage`.
  bool can_cut_behind(int stage) const;
  /// Whether any stage that `stage` is fed by, or feeds, is a T.
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
    return std::holds_alternative<T>(graph_.stages()[static_cast<std::size_t>(stage)].operation);
  }
  /// Those that are a T.
  template <typename T>
  std::vector<int> all() const {
    std::vector<int> found;
    for (int stage = 0; stage < size(); ++stage) {
      if (is<T>(stage)) found.push_back(stage);
    }
    return found;
  }
  const std::vector<int>& inputs(int stage) const { return graph_.stages()[static_cast<std::size_t>(stage)].inputs; }

 private:
  const Graph& graph_;
  std::vector<std::vector<bool>> before_;  ///< before_[b][a]: a is b or feeds it
  std::vector<std::vector<int>> leaving_;  ///< by stage, where its edges go; a tie is one too
};

/// Processes of a pipeline on one rank. The consumer is the caller's own.
enum class Role : std::uint8_t { dispatcher, worker, consumer };

/// With workers, stages run in up to three places, cut at two edges: items of stage `dispatch_boundary` go from the
/// dispatching process to the workers in turn, those of stage `collect_boundary` from the workers to the consumer.
/// Nothing else crosses. Without workers the consumer runs all.
struct Placement {
  std::vector<Role> role_of;             ///< by stage
  std::optional<int> dispatch_boundary;  ///< the last stage in the dispatching process; none: there is no such process
  std::optional<int> collect_boundary;  ///< whose items workers give: `dispatch_boundary` where they only pass them on;
                                        ///< none: no workers
  /// Every item dealt, or kept by the one shard where none are, gives one item gathered, and nothing in the workers
  /// remembers the items before: read from the workers in turn, they come in the order of one process.
  bool one_to_one = true;

  bool operator==(const Placement&) const = default;
};

/// The lowest common ancestor of all dispatch marks, with all that feeds it, is the dispatching process's; what comes
/// after it, and branches that it does not feed, are copied into each worker. A stage that needs all ranks (FullSync),
/// what comes after it, and branches that feed only those run in the consumer.
///
/// A repeat behind a mark counts as one: what it begins over again is in its process.
///
/// With `ordered` the items come as from one process. For that workers run as far as all they do is one-to-one or done
/// item by item (map, filter, flat_map, unbatch), the consumer the rest. Where there is no mark, shards and caches are
/// taken for marks, and where there are none either, the workers only pass on.
///
/// Throws InvalidArgument, naming the stages: a branch beside a mark that no shard divides; a stage that needs all
/// ranks before a mark or a repeat.
Placement place(const Graph& graph, int workers, bool ordered = false);

/// The last stage of the dispatching process, wherever there are workers; empty without dispatch marks.
std::optional<int> last_dispatched(const Graph& graph);
/// The lowest stage that all of `stages` feed or are, and all that feeds it feeds nothing else, so that the graph can
/// be cut behind it: siblings of a forked stage come with it, and stages tied to one. The end is always such a stage.
int lowest_common_ancestor(const Graph& graph, const std::vector<int>& stages);
/// The lowest stages of branches that `stage` neither feeds nor is fed by.
std::vector<int> branches_beside(const Graph& graph, int stage);

}  // namespace levada::pipeline
