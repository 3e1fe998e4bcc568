// Which stages of a graph feed which.
#pragma once

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

}  // namespace levada::pipeline
