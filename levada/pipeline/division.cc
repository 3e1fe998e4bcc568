#include "levada/pipeline/division.h"

#include "levada/pipeline/feeding.h"
#include "levada/pipeline/placement.h"

namespace levada::pipeline {

Division division_of(const Graph& graph, int shard, const Opening& opening) {
  const Feeding feeding(graph);
  if (feeding.follows<Shard>(shard)) return {};
  const bool dealt = feeding.follows<Dispatch>(shard) || feeding.precedes<Dispatch>(shard);
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
  const Feeding feeding(graph);
  if (const auto last = last_dispatched(graph); last && feeding.is_or_feeds(stage, *last)) return true;
  return feeding.precedes<Shard>(stage) && !feeding.follows<Shard>(stage) && !feeding.follows<Dispatch>(stage);
}

}  // namespace levada::pipeline
