// The stages of a pipeline as Python describes them: levada._levada.Graph.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "levada/base/enum_names.h"
#include "levada/base/error.h"
#include "levada/pipeline/item_sources.h"
#include "levada/pipeline/placement.h"
#include "python/src/bindings.h"
#include "python/src/corpus/corpus.h"
#include "python/src/pipeline/stages.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

using pipeline::Graph;
using pipeline::OnError;

OnError on_error_of(const std::string& word) {
  if (word == "raise") return OnError::raise;
  if (word == "skip") return OnError::skip;
  throw InvalidArgument(fmt::format("on_error is {:.40}; it must be raise or skip", word));
}

constexpr EnumName<pipeline::PartialRow> partial_names[] = {{"pad", pipeline::PartialRow::pad},
                                                            {"drop", pipeline::PartialRow::drop}};
constexpr EnumName<pipeline::LongDocument> too_long_names[] = {{"cut", pipeline::LongDocument::cut},
                                                               {"error", pipeline::LongDocument::error}};

constexpr EnumName<pipeline::StopAt> stop_names[] = {{"first", pipeline::StopAt::first_end},
                                                     {"last", pipeline::StopAt::last_end},
                                                     {"cycle", pipeline::StopAt::full_cycle}};
constexpr EnumName<DividesItself> divides_names[] = {
    {"no", DividesItself::no}, {"in parts", DividesItself::in_parts}, {"in turns", DividesItself::in_turns}};

/// Which process runs each stage, by its name; the last in the dispatching process; whose items the workers give;
/// whether order is kept.
std::tuple<nb::dict, std::optional<std::string>, std::optional<std::string>, bool> place(const Graph& graph,
                                                                                         int workers, bool ordered) {
  const auto placement = pipeline::place(graph, workers, ordered);
  nb::dict roles;
  for (std::size_t stage = 0; stage < placement.role_of.size(); ++stage) {
    roles[nb::cast(graph.stages()[stage].name)] = std::string(to_string(placement.role_of[stage]));
  }
  const auto named = [&](std::optional<int> stage) {
    return stage ? std::optional(graph.stage(*stage).name) : std::nullopt;
  };
  return {roles, named(placement.dispatch_boundary), named(placement.collect_boundary), placement.one_to_one};
}

nb::list stages_of(const Graph& graph) {
  nb::list stages;
  for (const auto& stage : graph.stages()) {
    stages.append(nb::make_tuple(stage.name, std::string(operation_name(stage.operation)), nb::cast(stage.inputs)));
  }
  return stages;
}

Graph corpus_graph(const nb::kwargs& given) {
  auto [paths, options] = corpus_of(given);
  const auto tensors = nb::cast<std::string>(given["tensors"]);
  if (tensors != "numpy" && tensors != "torch") {
    throw InvalidArgument(fmt::format("tensors is {:.40}; it must be numpy or torch", tensors));
  }
  const auto kind = tensors == "torch" ? TensorKind::torch : TensorKind::array;
  return Graph::source(shown_source(pipeline::corpus(std::move(paths), std::move(options)), kind),
                       nb::cast<std::string>(given["name"]));
}

/// What a graph begins with, or several become one by.
void bind_beginnings(nb::class_<Graph>& graph_class) {
  graph_class
      .def_static(
          "source",
          [](nb::object open, const std::string& what, const std::string& divides, const std::string& name,
             bool allow_pickle) {
            const auto divides_itself = parse_enum("divides", divides, divides_names);
            return Graph::source(python_source(std::move(open), what, divides_itself, allow_pickle), name);
          },
          nb::arg("open"), nb::arg("what"), nb::arg("divides"), nb::kw_only(), nb::arg("name"),
          nb::arg("allow_pickle") = false, "`divides`: \"no\", \"in parts\" or \"in turns\".")
      .def_static("corpus", &corpus_graph, nb::arg("options"),
                  nb::sig("def corpus(*, tensors: str, name: str, **options: typing.Any) -> Graph"),
                  "The samples of a levada.Corpus, whose fields `options` are.")
      .def_static(
          "zip",
          [](const std::vector<Graph>& inputs, const std::string& name) {
            return Graph::join(pipeline::Zip{}, inputs, name);
          },
          nb::arg("inputs"), nb::kw_only(), nb::arg("name"))
      .def_static(
          "concat",
          [](const std::vector<Graph>& inputs, const std::string& name) {
            return Graph::join(pipeline::Concat{}, inputs, name);
          },
          nb::arg("inputs"), nb::kw_only(), nb::arg("name"))
      .def_static(
          "interleave",
          [](const std::vector<Graph>& inputs, std::vector<double> weights, const std::string& stop,
             std::optional<std::uint64_t> seed, const std::string& name) {
            const auto stop_at = parse_enum("stop", stop, stop_names);
            return Graph::join(pipeline::Interleave{.weights = std::move(weights), .stop = stop_at, .seed = seed},
                               inputs, name);
          },
          nb::arg("inputs"), nb::kw_only(), nb::arg("weights"), nb::arg("stop"), nb::arg("seed").none(),
          nb::arg("name"))
      .def_static(
          "transform",
          [](const std::vector<Graph>& inputs, nb::object open, const std::string& what, const std::string& name,
             bool allow_pickle) {
            return Graph::join(transform_of(std::move(open), what, allow_pickle), inputs, name);
          },
          nb::arg("inputs"), nb::kw_only(), nb::arg("open"), nb::arg("what"), nb::arg("name"),
          nb::arg("allow_pickle") = false);
}

/// Stages that call a function of the user's on each item.
void bind_function_stages(nb::class_<Graph>& graph_class) {
  graph_class
      .def(
          "map",
          [](const Graph& graph, nb::object function, const std::string& on_error, int threads,
             const std::string& name) {
            return graph.then(map_of(std::move(function), on_error_of(on_error), threads), name);
          },
          nb::kw_only(), nb::arg("function"), nb::arg("on_error"), nb::arg("threads"), nb::arg("name"))
      .def(
          "filter",
          [](const Graph& graph, nb::object predicate, const std::string& on_error, const std::string& name) {
            return graph.then(filter_of(std::move(predicate), on_error_of(on_error)), name);
          },
          nb::kw_only(), nb::arg("predicate"), nb::arg("on_error"), nb::arg("name"))
      .def(
          "flat_map",
          [](const Graph& graph, nb::object function, const std::string& on_error, const std::string& name,
             bool allow_pickle) {
            return graph.then(flat_map_of(std::move(function), on_error_of(on_error), allow_pickle), name);
          },
          nb::kw_only(), nb::arg("function"), nb::arg("on_error"), nb::arg("name"), nb::arg("allow_pickle") = false);
}

/// Stages that give items as they come: together, in another order, only some, again.
void bind_item_stages(nb::class_<Graph>& graph_class) {
  graph_class
      .def(
          "batch",
          [](const Graph& graph, std::int64_t size, bool drop_last, const std::string& name) {
            return graph.then(pipeline::Batch{.size = size, .drop_last = drop_last}, name);
          },
          nb::kw_only(), nb::arg("size"), nb::arg("drop_last"), nb::arg("name"))
      .def(
          "bucket_batch",
          [](const Graph& graph, nb::object length, std::vector<std::int64_t> boundaries,
             std::optional<std::int64_t> size, std::optional<std::int64_t> max_tokens, bool drop_last,
             const std::string& name) {
            return graph.then(pipeline::BucketBatch{.length = length_of(std::move(length)),
                                                    .boundaries = std::move(boundaries),
                                                    .size = size,
                                                    .max_tokens = max_tokens,
                                                    .drop_last = drop_last},
                              name);
          },
          nb::kw_only(), nb::arg("length"), nb::arg("boundaries"), nb::arg("size").none(), nb::arg("max_tokens").none(),
          nb::arg("drop_last"), nb::arg("name"))
      .def(
          "unbatch", [](const Graph& graph, const std::string& name) { return graph.then(pipeline::Unbatch{}, name); },
          nb::kw_only(), nb::arg("name"))
      .def(
          "shuffle",
          [](const Graph& graph, std::int64_t buffer, std::optional<std::uint64_t> seed, const std::string& name) {
            return graph.then(pipeline::Shuffle{.buffer = buffer, .seed = seed}, name);
          },
          nb::kw_only(), nb::arg("buffer"), nb::arg("seed").none(), nb::arg("name"))
      .def(
          "take",
          [](const Graph& graph, std::int64_t count, const std::string& name) {
            return graph.then(pipeline::Take{count}, name);
          },
          nb::kw_only(), nb::arg("count"), nb::arg("name"))
      .def(
          "skip",
          [](const Graph& graph, std::int64_t count, const std::string& name) {
            return graph.then(pipeline::Skip{count}, name);
          },
          nb::kw_only(), nb::arg("count"), nb::arg("name"))
      .def(
          "cache",
          [](const Graph& graph, std::string folder, std::string key, const std::string& name) {
            return graph.then(pipeline::Cache{.folder = std::move(folder), .key = std::move(key)}, name);
          },
          nb::kw_only(), nb::arg("folder"), nb::arg("key"), nb::arg("name"))
      .def(
          "repeat",
          [](const Graph& graph, std::optional<std::int64_t> times, const std::string& name) {
            return graph.then(pipeline::Repeat{times}, name);
          },
          nb::kw_only(), nb::arg("times").none(), nb::arg("name"));
}

void bind_pack(nb::class_<Graph>& graph_class) {
  graph_class.def(
      "pack",
      [](const Graph& graph, std::int64_t sequence, const std::string& method, std::int64_t buffer, std::int64_t pad_to,
         const std::string& partial, const std::string& too_long, std::optional<std::int64_t> max_documents,
         const std::string& tokens, const std::string& dtype, const std::string& name) {
        return graph.then(pipeline::Pack{.sequence = sequence,
                                         .method = parse_packing(method),
                                         .buffer = buffer,
                                         .pad_to = pad_to,
                                         .partial = parse_enum("partial", partial, partial_names),
                                         .too_long = parse_enum("too_long", too_long, too_long_names),
                                         .max_documents = max_documents,
                                         .tokens = tokens,
                                         .ids = DType::parse(dtype)},
                          name);
      },
      nb::kw_only(), nb::arg("sequence"), nb::arg("method"), nb::arg("buffer"), nb::arg("pad_to"), nb::arg("partial"),
      nb::arg("too_long"), nb::arg("max_documents").none(), nb::arg("tokens"), nb::arg("dtype"), nb::arg("name"));
}

/// Stages that say who makes items, and when.
void bind_process_stages(nb::class_<Graph>& graph_class) {
  graph_class
      .def(
          "fork",
          [](const Graph& graph, std::int64_t branches, std::int64_t buffer, const std::string& name) {
            return graph.fork(branches, buffer, name);
          },
          nb::kw_only(), nb::arg("branches"), nb::arg("buffer"), nb::arg("name"))
      .def(
          "prefetch",
          [](const Graph& graph, std::int64_t depth, const std::string& name) {
            return graph.then(pipeline::Prefetch{depth}, name);
          },
          nb::kw_only(), nb::arg("depth"), nb::arg("name"))
      .def(
          "shard", [](const Graph& graph, const std::string& name) { return graph.then(pipeline::Shard{}, name); },
          nb::kw_only(), nb::arg("name"))
      .def(
          "dispatch",
          [](const Graph& graph, const std::string& name) { return graph.then(pipeline::Dispatch{}, name); },
          nb::kw_only(), nb::arg("name"))
      .def(
          "fullsync",
          [](const Graph& graph, const std::string& name) { return graph.then(pipeline::FullSync{}, name); },
          nb::kw_only(), nb::arg("name"));
}

void bind_placement(nb::class_<Graph>& graph_class) {
  graph_class
      .def("colocate", &Graph::colocate, nb::arg("first"), nb::arg("last"),
           "Makes one process run both stages, and all between.")
      .def("stages", &stages_of, nb::sig("def stages(self) -> list[tuple[str, str, list[int]]]"),
           "Name, operation and inputs of each.")
      .def("place", &place, nb::arg("workers"), nb::arg("ordered"),
           nb::sig("def place(self, workers: int, ordered: bool) -> tuple[dict[str, str], str | None, str | None, "
                   "bool]"),
           "Who runs each stage; the last stage of the dispatching process; whose items workers send; whether each "
           "input item becomes one item.");
}

}  // namespace

void bind_graph(nb::module_& module) {
  nb::class_<Graph> graph_class(module, "Graph", "A pipeline's stages, the last of which is its end.");
  bind_beginnings(graph_class);
  bind_function_stages(graph_class);
  bind_item_stages(graph_class);
  bind_pack(graph_class);
  bind_process_stages(graph_class);
  bind_placement(graph_class);
}

}  // namespace levada::python
