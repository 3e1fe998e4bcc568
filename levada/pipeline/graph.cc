#include "levada/pipeline/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "levada/base/error.h"
#include "levada/base/overloaded.h"
#include "levada/pipeline/placement.h"

namespace levada::pipeline {
namespace {

[[noreturn]] void throw_invalid(std::string_view stage, std::string_view what) {
  throw InvalidArgument(fmt::format("stage \"{}\": {}", stage, what));
}

std::string min_fault(std::string_view name, std::int64_t value, std::int64_t min) {
  return value < min ? fmt::format("{} is {}; it is at least {}", name, value, min) : std::string();
}

std::string range_fault(std::string_view name, std::int64_t value, std::int64_t min, std::int64_t max) {
  if (value <= max) return min_fault(name, value, min);
  return fmt::format("{} is {}; it must be at most {}", name, value, max);
}

std::string fault_of(const Pack& pack) {
  const auto documents = pack.max_documents.value_or(1);
  for (auto fault : {min_fault("sequence", pack.sequence, 1), min_fault("buffer", pack.buffer, 1),
                     min_fault("pad_to", pack.pad_to, 1), min_fault("max_documents", documents, 1)}) {
    if (!fault.empty()) return fault;
  }
  if (pack.sequence > std::numeric_limits<std::int32_t>::max()) {
    return fmt::format("sequence is {}; it is at most 2^31 - 1", pack.sequence);
  }
  if (pack.sequence % pack.pad_to != 0) {
    return fmt::format("sequence is {}, which is not a multiple of pad_to, {}", pack.sequence, pack.pad_to);
  }
  if (pack.method == Packing::documents) {
    return "method is documents, which only a corpus supports; it must be cut or best-fit";
  }
  if (pack.ids != dtypes::int64 && pack.ids != dtypes::int32) {
    return fmt::format("dtype is {}; it must be int64 or int32", pack.ids.name());
  }
  if (documents <= pack.sequence) return {};
  return fmt::format("max_documents is {}; no more than {} fit into a row", documents, pack.sequence);
}

std::string fault_of(const BucketBatch& batch) {
  if (!batch.length) return "it has no function";
  if (!batch.size && !batch.max_tokens) return "it needs size or max_tokens";
  for (auto fault :
       {min_fault("size", batch.size.value_or(1), 1), min_fault("max_tokens", batch.max_tokens.value_or(1), 1)}) {
    if (!fault.empty()) return fault;
  }
  for (std::size_t i = 0; i < batch.boundaries.size(); ++i) {
    if (batch.boundaries[i] > (i == 0 ? 0 : batch.boundaries[i - 1])) continue;
    return fmt::format("boundary {} is {}; boundaries grow, from 1", i, batch.boundaries[i]);
  }
  return {};
}

std::string fault_of(const Interleave& interleave, std::size_t inputs) {
  const auto& weights = interleave.weights;
  if (weights.empty()) return interleave.seed ? "a seed requires weights; give both, or neither" : std::string();
  if (weights.size() != inputs) return fmt::format("it has {} weights for {} inputs", weights.size(), inputs);
  for (const double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight)) return fmt::format("a weight is {}; it must be above 0", weight);
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!std::isfinite(sum)) return "the sum of its weights is not finite; give smaller ones";
  return {};
}

/// Returns the fault of the operation in isolation; empty if there is none.
std::string fault_of(const Operation& operation, std::size_t inputs) {
  const auto callable = [](const auto& function) { return std::string(function ? "" : "it has no function"); };
  return std::visit(
      Overloaded{
          [](const Source& s) { return std::string(s.items ? "" : "it has no item source"); },
          [&](const Map& s) {
            const auto fault = callable(s.function);
            return fault.empty() ? range_fault("threads", s.threads, 0, 1024) : fault;
          },
          [](const BucketBatch& s) { return fault_of(s); }, [&](const Interleave& s) { return fault_of(s, inputs); },
          [&](const Filter& s) { return callable(s.predicate); },
          [&](const FlatMap& s) { return callable(s.function); }, [&](const Transform& s) { return callable(s.open); },
          [&](const Batch& s) { return min_fault("size", s.size, 1); }, [](const Pack& s) { return fault_of(s); },
          [&](const Shuffle& s) { return min_fault("buffer", s.buffer, 1); },
          [&](const Take& s) { return min_fault("count", s.count, 0); },
          [&](const Skip& s) { return min_fault("count", s.count, 0); },
          [&](const Repeat& s) { return min_fault("times", s.times.value_or(0), 0); },
          [&](const Fork& s) {
            const auto fault = range_fault("branches", s.branches, 1, 1024);
            return fault.empty() ? min_fault("buffer", s.buffer, 1) : fault;
          },
          [](const Cache& s) { return std::string(s.folder.empty() ? "it has no folder" : ""); },
          [&](const Branch& s) { return min_fault("index", s.index, 0); },
          [&](const Prefetch& s) { return range_fault("depth", s.depth, 1, 1 << 24); },
          [](const auto&) { return std::string(); }},
      operation);
}

/// The number of inputs of an operation.
struct Inputs {
  std::size_t min, max;
  std::string_view text;
};
Inputs inputs_of(const Operation& operation) {
  if (std::holds_alternative<Source>(operation)) return {0, 0, "no stages"};
  const bool several = std::holds_alternative<Zip>(operation) || std::holds_alternative<Concat>(operation) ||
                       std::holds_alternative<Interleave>(operation) || std::holds_alternative<Transform>(operation);
  if (several) return {1, std::numeric_limits<std::size_t>::max(), "one stage or several"};
  return {1, 1, "one stage"};
}

/// Throws unless only branches take items from a fork, and branches take items only from a fork.
void check_fork(const Stage& stage, const Stage& input) {
  const auto* fork = std::get_if<Fork>(&input.operation);
  const auto* branch = std::get_if<Branch>(&stage.operation);
  if (fork == nullptr && branch == nullptr) return;
  if (fork == nullptr) throw_invalid(stage.name, fmt::format("its input \"{}\" is not a fork", input.name));
  if (branch == nullptr)
    throw_invalid(stage.name, fmt::format("it reads fork \"{}\" itself; let it read a branch", input.name));
  if (branch->index >= fork->branches) {
    throw_invalid(stage.name, fmt::format("fork \"{}\" has {} branches, so there is no branch {}", input.name,
                                          fork->branches, branch->index));
  }
}

/// Throws if an Interleave that counts the passes of its inputs has an input that is not an endless Repeat.
void check_cycle(const Stage& stage, const Stage& input) {
  const auto* interleave = std::get_if<Interleave>(&stage.operation);
  if (interleave == nullptr || interleave->stop != StopAt::full_cycle) return;
  const auto* repeat = std::get_if<Repeat>(&input.operation);
  if (repeat == nullptr || repeat->times) {
    throw_invalid(stage.name, fmt::format("input \"{}\" is not an endless repeat, so it cannot restart", input.name));
  }
}

/// Checks that only one stage, or one per branch, reads a stage's items, since an iterator is read only once.
void check_read_once(const std::vector<Stage>& stages) {
  std::vector<std::vector<const Stage*>> readers(stages.size());
  for (const Stage& stage : stages) {
    for (const int input : stage.inputs) readers[static_cast<std::size_t>(input)].push_back(&stage);
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    std::set<std::int64_t> branches;
    for (const Stage* reader : readers[i]) {
      const auto* branch = std::get_if<Branch>(&reader->operation);
      if (!branches.insert(branch != nullptr ? branch->index : -1).second) {
        throw_invalid(stages[i].name,
                      fmt::format("its items go to \"{}\" and to \"{}\"; fork it and give each a branch",
                                  readers[i].front()->name, reader->name));
      }
    }
  }
}

/// Checks caches: a cache has the same items in each pass, and no stage before it runs once the file is complete.
void check_caches(const Graph& graph) {
  const Reachability reach(graph);
  for (const int cache : reach.all<Cache>()) {
    const auto& name = graph.stage(cache).name;
    if (!reach.can_cut_after(cache))
      throw_invalid(name, "items before it are also used elsewhere, and would be missing there once it is complete");
    for (int before = 0; before < cache; ++before) {
      if (!reach.feeds(before, cache)) continue;
      const Stage& stage = graph.stage(before);
      const auto* interleave = std::get_if<Interleave>(&stage.operation);
      const bool draws = reach.is<Shuffle>(before) || (interleave != nullptr && !interleave->weights.empty());
      if (draws || reach.is<Dispatch>(before) || reach.is<FullSync>(before)) {
        throw_invalid(
            name, fmt::format("\"{}\" before it would run in the first pass only; put it after the cache", stage.name));
      }
    }
  }
}

std::string numbered(std::string_view name, const std::set<std::string>& taken) {
  std::string free(name);
  for (int number = 2; taken.contains(free); ++number) free = fmt::format("{}_{}", name, number);
  return free;
}

/// The identity of a stage, in every graph that contains it.
using StageIdentity = std::shared_ptr<const void>;

}  // namespace

std::string_view operation_name(const Operation& operation) {
  constexpr std::array<std::string_view, std::variant_size_v<Operation>> names = {
      "source",  "map",   "filter", "flat_map", "batch",    "bucket_batch", "unbatch",  "pack",
      "shuffle", "shard", "take",   "skip",     "repeat",   "zip",          "concat",   "interleave",
      "cache",   "fork",  "branch", "prefetch", "dispatch", "full_sync",    "transform"};
  return names[operation.index()];
}

std::int64_t Pack::default_max_documents() const {
  return std::min(sequence / pad_to, std::max<std::int64_t>(64, sequence / 32));
}

struct Graph::State {
  std::vector<Stage> stages;
  std::vector<StageIdentity> identities;  ///< by stage
  std::vector<bool> named;                ///< by stage: whether a caller named it

  int find(const StageIdentity& identity) const {
    const auto found = std::ranges::find(identities, identity);
    return found == identities.end() ? -1 : static_cast<int>(found - identities.begin());
  }

  int append(Stage stage, StageIdentity identity, bool is_named) {
    stages.push_back(std::move(stage));
    identities.push_back(std::move(identity));
    named.push_back(is_named);
    return static_cast<int>(stages.size()) - 1;
  }

  /// Adds the missing stages. Returns the number of the other graph's end.
  int merge(const State& other) {
    if (stages.empty()) {
      *this = other;
      return static_cast<int>(stages.size()) - 1;
    }
    std::vector<int> number_of;
    const auto renumber = [&](std::vector<int>& numbers) {
      for (int& number : numbers) number = number_of[static_cast<std::size_t>(number)];
    };
    for (std::size_t i = 0; i < other.stages.size(); ++i) {
      int number = find(other.identities[i]);
      if (number < 0) {
        Stage stage = other.stages[i];
        stage.colocated.clear();
        renumber(stage.inputs);
        number = append(std::move(stage), other.identities[i], other.named[i]);
      }
      number_of.push_back(number);
    }
    for (std::size_t i = 0; i < other.stages.size(); ++i) {
      for (const int to : other.stages[i].colocated) colocate(number_of[i], number_of[static_cast<std::size_t>(to)]);
    }
    return number_of.back();
  }

  void colocate(int first, int last) {
    auto& colocated = stages[static_cast<std::size_t>(first)].colocated;
    if (std::ranges::find(colocated, last) == colocated.end()) colocated.push_back(last);
  }

  /// Gives each stage a unique name; names given by callers stay.
  void assign_names() {
    std::set<std::string> taken;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (named[i] && !taken.insert(stages[i].name).second)
        throw_invalid(stages[i].name, "another stage has that name");
    }
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (named[i]) continue;
      if (stages[i].name.empty() || taken.contains(stages[i].name)) {
        stages[i].name = numbered(operation_name(stages[i].operation), taken);
      }
      taken.insert(stages[i].name);
    }
  }
};

Graph::Graph(State state) : state_(std::make_shared<const State>(std::move(state))) {}

Graph Graph::source(std::shared_ptr<const ItemSource> items, std::string name) {
  return join(Source{std::move(items)}, {}, std::move(name));
}

Graph Graph::then(Operation operation, std::string name) const {
  return join(std::move(operation), {*this}, std::move(name));
}

Graph Graph::join(Operation operation, const std::vector<Graph>& inputs, std::string name) {
  State state;
  Stage last{.name = name.empty() ? std::string(operation_name(operation)) : name, .operation = std::move(operation)};
  if (const auto fault = fault_of(last.operation, inputs.size()); !fault.empty()) throw_invalid(last.name, fault);
  const Inputs wanted = inputs_of(last.operation);
  if (inputs.size() < wanted.min || inputs.size() > wanted.max) {
    throw_invalid(last.name, fmt::format("it has {} inputs, but needs {}", inputs.size(), wanted.text));
  }
  for (const Graph& input : inputs) last.inputs.push_back(state.merge(*input.state_));
  state.assign_names();
  for (const Stage& stage : state.stages) {
    if (stage.name == name) throw_invalid(name, "another stage has that name");
  }
  for (const int input : last.inputs) {
    const Stage& before = state.stages[static_cast<std::size_t>(input)];
    check_fork(last, before);
    check_cycle(last, before);
  }
  if (name.empty()) last.name.clear();
  state.append(std::move(last), std::make_shared<const char>(), !name.empty());
  state.assign_names();
  check_read_once(state.stages);
  Graph graph(std::move(state));
  check_caches(graph);
  return graph;
}

std::vector<Graph> Graph::fork(std::int64_t branches, std::int64_t buffer, std::string name) const {
  const Graph forked = then(Fork{.branches = branches, .buffer = buffer}, std::move(name));
  std::vector<Graph> graphs;
  for (std::int64_t i = 0; i < branches; ++i) graphs.push_back(forked.then(Branch{i}));
  return graphs;
}

Graph Graph::colocate(std::string_view first, std::string_view last) const {
  const int from = find(first), to = find(last);
  if (!Reachability(*this).feeds(from, to)) throw_invalid(first, fmt::format("its items do not reach \"{}\"", last));
  State state = *state_;
  state.colocate(from, to);
  return Graph(std::move(state));
}

const std::vector<Stage>& Graph::stages() const {
  return state_->stages;
}

int Graph::find(std::string_view name) const {
  const auto found = std::ranges::find(stages(), name, &Stage::name);
  if (found != stages().end()) return static_cast<int>(found - stages().begin());
  std::vector<std::string_view> names;
  for (const Stage& stage : stages()) names.push_back(stage.name);
  throw InvalidArgument(fmt::format("there is no stage \"{}\"; the stages are {}", name, fmt::join(names, ", ")));
}

}  // namespace levada::pipeline
