#include "levada/pipeline/division.h"

#include "levada/pipeline/placement.h"
#include "levada/pipeline/reachability.h"

namespace levada::pipeline {

Division division_of(const Graph& graph, int shard, const Opening& opening) {
  const Reachability reach(graph);
  if (reach.follows<Shard>(shard)) return {};
  const bool dealt = reach.follows<Dispatch>(shard) || reach.precedes<Dispatch>(shard);
  return dealt ? opening.among_ranks : opening.among_all;
}

bool divides_at_source(const Graph& graph, int shard) {
  const Stage& stage = graph.stages()[static_cast<std::size_t>(shard)];
  if (!std::holds_alternative<Shard>(stage.operation)) return false;
  const Stage& before = graph.stages()[static_cast<std::size_t>(stage.inputs.front())];
  const auto* source = std::get_if<Source>(&before.operation);
  return source != nullptr && source->origin->divides();
}

bool draws_alike(const Graph& graph, int stage) {
  const Reachability reach(graph);
  if (const auto last = last_dispatched(graph); last && reach.is_or_feeds(stage, *last)) return true;
  return reach.precedes<Shard>(stage) && !reach.follows<Shard>(stage) && !reach.follows<Dispatch>(stage);
}

}  // namespace levada::pipeline
