#include "levada/pipeline/reachability.h"

#include <algorithm>

namespace levada::pipeline {

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
    for (const int other : stages[stage].tied) leaving_[stage].push_back(other);
  }
}

int Reachability::count_before(int stage) const {
  const auto& before = before_[static_cast<std::size_t>(stage)];
  return static_cast<int>(std::ranges::count(before, true));
}

bool Reachability::can_cut_behind(int stage) const {
  if (leaving_[static_cast<std::size_t>(stage)].size() > 1 || is<Fork>(stage)) return false;
  for (int inner = 0; inner < stage; ++inner) {
    if (!feeds(inner, stage)) continue;
    const auto& edges = leaving_[static_cast<std::size_t>(inner)];
    if (!std::ranges::all_of(edges, [&](int to) { return is_or_feeds(to, stage); })) return false;
  }
  return true;
}

}  // namespace levada::pipeline
