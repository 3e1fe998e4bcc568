// The stages of a pipeline as described by Python: levada._levada.Graph.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
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
using pipeline::Operation;

constexpr EnumName<OnError> on_error_names[] = {{"raise", OnError::raise}, {"skip", OnError::skip}};
constexpr EnumName<pipeline::PartialRow> partial_names[] = {{"pad", pipeline::PartialRow::pad},
                                                            {"drop", pipeline::PartialRow::drop}};
constexpr EnumName<pipeline::LongDocument> too_long_names[] = {{"cut", pipeline::LongDocument::cut},
                                                               {"error", pipeline::LongDocument::error}};
constexpr EnumName<pipeline::StopAt> stop_names[] = {{"first", pipeline::StopAt::first_end},
                                                     {"last", pipeline::StopAt::last_end},
                                                     {"cycle", pipeline::StopAt::full_cycle}};
constexpr EnumName<DividesItself> divides_names[] = {
    {"no", DividesItself::no}, {"in parts", DividesItself::in_parts}, {"in turns", DividesItself::in_turns}};

/// Arguments of a stage, by name.
class Arguments {
 public:
  Arguments(std::string_view operation, const nb::dict& given) : operation_(operation), given_(given) {}

  /// Throws Python's TypeError, naming the argument, if it is not a T.
  template <typename T>
  T get(const char* name) const {
    const nb::object value = given_[name];
    T argument;
    if (nb::try_cast(value, argument)) return argument;
    throw nb::type_error(
        fmt::format("{} of {}() has the wrong type: {}", name, operation_, nb::repr(value).c_str()).c_str());
  }
  template <typename E, std::size_t N>
  E one_of(const char* name, const EnumName<E> (&names)[N]) const {
    return parse_enum(name, get<std::string>(name), names);
  }

 private:
  std::string_view operation_;
  const nb::dict& given_;
};

Operation source_of(const Arguments& given) {
  return pipeline::Source{python_source(given.get<nb::object>("open"), given.get<std::string>("what"),
                                        given.one_of("divides", divides_names), given.get<bool>("allow_pickle"))};
}

Operation corpus_source_of(const Arguments& given) {
  auto [paths, options] = corpus_of(given.get<nb::kwargs>("options"));
  return pipeline::Source{shown_source(pipeline::corpus(std::move(paths), std::move(options)),
                                       kind_of_tensors(given.get<std::string>("tensors")))};
}

Operation bucket_batch_of(const Arguments& given) {
  return pipeline::BucketBatch{.length = length_of(given.get<nb::object>("length")),
                               .boundaries = given.get<std::vector<std::int64_t>>("boundaries"),
                               .size = given.get<std::optional<std::int64_t>>("size"),
                               .max_tokens = given.get<std::optional<std::int64_t>>("max_tokens"),
                               .drop_last = given.get<bool>("drop_last")};
}

Operation pack_of(const Arguments& given) {
  return pipeline::Pack{.sequence = given.get<std::int64_t>("sequence"),
                        .method = parse_packing(given.get<std::string>("method")),
                        .buffer = given.get<std::int64_t>("buffer"),
                        .pad_to = given.get<std::int64_t>("pad_to"),
                        .partial = given.one_of("partial", partial_names),
                        .too_long = given.one_of("too_long", too_long_names),
                        .max_documents = given.get<std::optional<std::int64_t>>("max_documents"),
                        .tokens = given.get<std::string>("tokens"),
                        .ids = DType::parse(given.get<std::string>("dtype"))};
}

Operation interleave_of(const Arguments& given) {
  return pipeline::Interleave{.weights = given.get<std::vector<double>>("weights"),
                              .stop = given.one_of("stop", stop_names),
                              .seed = given.get<std::optional<std::uint64_t>>("seed")};
}

struct NamedOperation {
  std::string_view name;
  Operation (*make)(const Arguments& given);
};

/// The methods of levada.Pipeline that add a stage, with their argument names, and those that begin a pipeline.
constexpr NamedOperation operations[] = {
    {"source", source_of},
    {"corpus", corpus_source_of},
    {"map",
     [](const Arguments& given) -> Operation {
       return map_of(given.get<nb::object>("function"), given.one_of("on_error", on_error_names),
                     given.get<int>("threads"));
     }},
    {"filter",
     [](const Arguments& given) -> Operation {
       return filter_of(given.get<nb::object>("predicate"), given.one_of("on_error", on_error_names));
     }},
    {"flat_map",
     [](const Arguments& given) -> Operation {
       return flat_map_of(given.get<nb::object>("function"), given.one_of("on_error", on_error_names),
                          given.get<bool>("allow_pickle"));
     }},
    {"transform",
     [](const Arguments& given) -> Operation {
       return transform_of(given.get<nb::object>("open"), given.get<std::string>("what"),
                           given.get<bool>("allow_pickle"));
     }},
    {"batch",
     [](const Arguments& given) -> Operation {
       return pipeline::Batch{.size = given.get<std::int64_t>("size"), .drop_last = given.get<bool>("drop_last")};
     }},
    {"bucket_batch", bucket_batch_of},
    {"unbatch", [](const Arguments&) -> Operation { return pipeline::Unbatch{}; }},
    {"pack", pack_of},
    {"shuffle",
     [](const Arguments& given) -> Operation {
       return pipeline::Shuffle{.buffer = given.get<std::int64_t>("buffer"),
                                .seed = given.get<std::optional<std::uint64_t>>("seed")};
     }},
    {"shard", [](const Arguments&) -> Operation { return pipeline::Shard{}; }},
    {"take", [](const Arguments& given) -> Operation { return pipeline::Take{given.get<std::int64_t>("count")}; }},
    {"skip", [](const Arguments& given) -> Operation { return pipeline::Skip{given.get<std::int64_t>("count")}; }},
    {"repeat",
     [](const Arguments& given) -> Operation {
       return pipeline::Repeat{given.get<std::optional<std::int64_t>>("times")};
     }},
    {"cache",
     [](const Arguments& given) -> Operation {
       return pipeline::Cache{.folder = given.get<std::string>("folder"), .key = given.get<std::string>("key")};
     }},
    {"zip", [](const Arguments&) -> Operation { return pipeline::Zip{}; }},
    {"concat", [](const Arguments&) -> Operation { return pipeline::Concat{}; }},
    {"interleave", interleave_of},
    {"prefetch",
     [](const Arguments& given) -> Operation { return pipeline::Prefetch{given.get<std::int64_t>("depth")}; }},
    {"dispatch", [](const Arguments&) -> Operation { return pipeline::Dispatch{}; }},
    {"fullsync", [](const Arguments&) -> Operation { return pipeline::FullSync{}; }},
};

Graph add_stage(const std::string& operation, const std::vector<Graph>& inputs, const nb::dict& arguments,
                const std::string& name) {
  const auto* const found = std::ranges::find(operations, operation, &NamedOperation::name);
  if (found == std::end(operations)) throw InvalidArgument(fmt::format("a pipeline has no operation {}", operation));
  return Graph::join(found->make(Arguments(operation, arguments)), inputs, name);
}

/// Returns the process of each stage by its name; the last stage in the dispatching process; the stage whose items the
/// workers return; and whether order is kept.
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

}  // namespace

void bind_graph(nb::module_& module) {
  nb::class_<Graph>(module, "Graph", "The stages of a pipeline up to an end stage.")
      .def_static(
          "stage", &add_stage, nb::arg("operation"), nb::arg("inputs"), nb::arg("arguments"), nb::arg("name"),
          nb::sig("def stage(operation: str, inputs: collections.abc.Sequence[Graph], arguments: dict[str, "
                  "typing.Any], name: str) -> Graph"),
          "Returns the graph that ends in this stage. operation: a method of levada.Pipeline other than fork(), "
          "\"source\" or \"corpus\".")
      .def("fork", &Graph::fork, nb::kw_only(), nb::arg("branches"), nb::arg("buffer"), nb::arg("name"))
      .def("colocate", &Graph::colocate, nb::arg("first"), nb::arg("last"),
           "Makes one process run both stages and all stages between them.")
      .def("stages", &stages_of, nb::sig("def stages(self) -> list[tuple[str, str, list[int]]]"),
           "Name, operation and inputs of each stage.")
      .def("place", &place, nb::arg("workers"), nb::arg("ordered"),
           nb::sig("def place(self, workers: int, ordered: bool) -> tuple[dict[str, str], str | None, str | None, "
                   "bool]"),
           "Returns the kind of process that runs each stage, the last stage of the dispatching process, the last "
           "stage of the workers, and whether each input item becomes one item.");
}

}  // namespace levada::python
