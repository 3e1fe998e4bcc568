#include "levada/pipeline/open_context.h"

#include <fmt/format.h>

#include <span>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/pipeline/placement.h"

namespace levada::pipeline {
namespace {

std::uint64_t derived(std::uint64_t seed, std::int64_t number) {
  return hash64(std::as_bytes(std::span(&number, 1)), seed);
}

std::uint64_t own_seed(std::uint64_t shared, const Copy& copy) {
  if (copy.role == Role::dispatcher) return shared;
  const auto of_rank = derived(shared, copy.rank + 1);
  return derived(of_rank, copy.role == Role::worker ? copy.worker + 1 : 0);
}

}  // namespace

OpenContext make_open_context(std::uint64_t seed, std::int64_t epoch, const Copy& copy) {
  const auto shared = derived(seed, epoch);
  const Partition among_ranks{copy.rank, copy.ranks};
  const Partition among_all{copy.rank + std::int64_t{copy.ranks} * copy.worker,
                            std::int64_t{copy.ranks} * copy.workers};
  return {.epoch = epoch,
          .pass_number = {epoch},
          .shared_seed = shared,
          .own_seed = own_seed(shared, copy),
          .among_ranks = among_ranks,
          .among_all = copy.role == Role::worker ? among_all : among_ranks};
}

OpenContext further_pass(const OpenContext& open_context, std::int64_t pass, std::optional<std::int64_t> times) {
  auto further = open_context;
  if (__builtin_mul_overflow(open_context.epoch, times.value_or(1), &further.epoch) ||
      __builtin_add_overflow(further.epoch, pass, &further.epoch)) {
    throw InvalidArgument(
        fmt::format("pass {} of epoch {} has no number: repeat it fewer times", pass, open_context.epoch));
  }
  further.pass_number.push_back(pass);
  if (pass == 0) return further;
  further.shared_seed = derived(open_context.shared_seed, pass);
  further.own_seed = derived(open_context.own_seed, pass);
  return further;
}

std::uint64_t stage_seed(std::uint64_t seed, std::string_view stage) {
  return hash64(as_bytes(stage), seed);
}

Partition partition_of(const Graph& graph, int shard, const OpenContext& open_context) {
  const Reachability reach(graph);
  if (reach.follows<Shard>(shard)) return {};
  const bool dispatches = reach.follows<Dispatch>(shard) || reach.precedes<Dispatch>(shard);
  return dispatches ? open_context.among_ranks : open_context.among_all;
}

bool divides_at_source(const Graph& graph, int shard) {
  const Stage& stage = graph.stage(shard);
  if (!std::holds_alternative<Shard>(stage.operation)) return false;
  const Stage& before = graph.stage(stage.inputs.front());
  const auto* source = std::get_if<Source>(&before.operation);
  return source != nullptr && source->items->divides();
}

bool draws_alike(const Graph& graph, int stage) {
  const Reachability reach(graph);
  if (const auto last = last_dispatched(graph); last && reach.is_or_feeds(stage, *last)) return true;
  return reach.precedes<Shard>(stage) && !reach.follows<Shard>(stage) && !reach.follows<Dispatch>(stage);
}

}  // namespace levada::pipeline
