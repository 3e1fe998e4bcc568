#include "levada/plan/layout.h"

#include <fmt/format.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/json.h"
#include "python/src/base/errors.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

#define PLACEMENT "str | Shard | Replicate | Zigzag | Stages"
#define PLACEMENTS PLACEMENT " | collections.abc.Sequence[" PLACEMENT "] | collections.abc.Mapping[str, typing.Any]"

namespace levada::python {
namespace {

/// Returns JSON text without its line breaks and the indentation after them.
std::string on_one_line(std::string_view json) {
  std::string line;
  for (std::size_t at = 0; at < json.size(); ++at) {
    if (json[at] != '\n') {
      line += json[at];
      continue;
    }
    if (!line.empty() && line.back() == ',') line += ' ';
    while (at + 1 < json.size() && json[at + 1] == ' ') ++at;
  }
  return line;
}

std::string name_of_type(nb::handle value) {
  return nb::cast<std::string>(value.type().attr("__name__"));
}

std::string text_of(nb::handle placement);

/// Converts a placement of torch.distributed.tensor on an axis, without importing torch.
Placement placement_of_dtensor(nb::handle value, const std::string& axis) {
  if (!nb::hasattr(value, "is_replicate")) {
    throw InvalidArgument(
        fmt::format("{} cannot be placed along {}: a dict has Shard(dim) and Replicate() of torch.distributed.tensor "
                    "by axis; levada's "
                    "own placements name their axis, and one of them or a list of them takes the dict's place",
                    text_of(value), axis));
  }
  const std::string kind = name_of_type(value);
  if (kind == "Shard") return Shard{axis, nb::cast<int>(value.attr("dim"))};
  if (kind == "Replicate") return Replicate{axis};
  throw InvalidArgument(fmt::format(
      "{} cannot be placed along {}: a placement by axis is Shard(dim) or Replicate() of torch.distributed.tensor",
      nb::repr(value).c_str(), axis));
}

std::string text_of(nb::handle placement) {
  if (nb::isinstance<nb::str>(placement)) return nb::cast<std::string>(placement);
  if (nb::isinstance<Shard>(placement)) return to_string(nb::cast<Shard>(placement));
  if (nb::isinstance<Replicate>(placement)) return to_string(nb::cast<Replicate>(placement));
  if (nb::isinstance<Zigzag>(placement)) return to_string(nb::cast<Zigzag>(placement));
  if (nb::isinstance<Stages>(placement)) return to_string(nb::cast<Stages>(placement));
  if (nb::hasattr(placement, "is_replicate")) {  // a DTensor placement in a list, whose axis is unknown without a mesh
    throw InvalidArgument(
        fmt::format("{} in a list names no axis; write {{\"dp\": {}}}, a dict with one entry for each axis of the mesh",
                    nb::repr(placement).c_str(), nb::repr(placement).c_str()));
  }
  throw InvalidArgument(fmt::format(
      "{} is not a placement: pass a levada.Shard, Replicate, Zigzag or Stages, its text such as \"shard(dp,0)\", or a "
      "dict from axes to placements of torch.distributed.tensor",
      nb::repr(placement).c_str()));
}

using Json = nlohmann::ordered_json;

Json placements_of(nb::handle value) {
  Json placements = Json::array();
  if (PyDict_Check(value.ptr())) {
    for (const auto& [axis, placement] : nb::borrow<nb::dict>(value)) {
      placements.push_back(to_string(placement_of_dtensor(placement, nb::cast<std::string>(axis))));
    }
  } else if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
    for (const nb::handle each : value) placements.push_back(text_of(each));
  } else {
    placements.push_back(text_of(value));
  }
  return placements;
}

using StageTable = std::map<std::string, std::vector<int>>;

/// Builds a Layout by way of JSON, whose reader validates names, patterns and stages.
Layout layout_of(const nb::object& fields, nb::handle otherwise, const std::vector<std::string>& optional,
                 const std::optional<StageTable>& stages, const std::string& name) {
  Json rules = Json::object(), coordinates = Json::object();
  if (!nb::hasattr(fields, "items")) {
    throw InvalidArgument(
        fmt::format("fields is {:.100}; it must be a mapping from names to placements", nb::repr(fields).c_str()));
  }
  for (const nb::handle item : fields.attr("items")()) {
    if (!nb::isinstance<nb::str>(item[0])) {
      throw InvalidType(
          fmt::format("a field of a layout is named {:.100}; names of fields are texts", nb::repr(item[0]).c_str()));
    }
    rules[nb::cast<std::string>(item[0])] = placements_of(item[1]);
  }
  if (stages) coordinates = *stages;
  const Json json = {{"name", name},
                     {"fields", std::move(rules)},
                     {"optional", optional},
                     {"otherwise", placements_of(otherwise)},
                     {"stages", std::move(coordinates)}};
  return Layout::from_json(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

/// `State` are the pickled values from which Kind is constructed.
template <typename Kind, typename... State>
nb::class_<Kind> bind_placement(nb::module_& module, const char* name, const char* doc, auto&& state_of) {
  return nb::class_<Kind>(module, name, doc)
      .def("__getstate__", state_of)
      .def("__setstate__",
           [](Kind& self, const std::tuple<State...>& state) {
             std::apply([&](const State&... each) { new (&self) Kind{each...}; }, state);
           })
      .def_ro("axis", &Kind::axis)
      .def(
          "__eq__",
          [](const Kind& placement, nb::handle other) {
            return nb::isinstance<Kind>(other) && placement == nb::cast<const Kind&>(other);
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const Kind& placement) { return std::hash<std::string>()(to_string(placement)); })
      .def("__str__", [](const Kind& placement) { return to_string(placement); });
}

}  // namespace

void bind_layout(nb::module_& module) {
  bind_placement<Shard, std::string, int>(module, "Shard",
                                          "Cuts dimension `dim` into as many equal parts as the axis has ranks.",
                                          [](const Shard& shard) { return std::tuple(shard.axis, shard.dim); })
      .def(nb::init<std::string, int>(), nb::arg("axis"), nb::arg("dim") = 0)
      .def_ro("dim", &Shard::dim)
      .def("__repr__", [](const Shard& shard) { return fmt::format("Shard('{}', {})", shard.axis, shard.dim); });
  bind_placement<Replicate, std::string>(module, "Replicate", "Sends the whole field to every rank along the axis.",
                                         [](const Replicate& placement) { return std::tuple(placement.axis); })
      .def(nb::init<std::string>(), nb::arg("axis"))
      .def("__repr__", [](const Replicate& placement) { return fmt::format("Replicate('{}')", placement.axis); });
  bind_placement<Zigzag, std::string, int>(
      module, "Zigzag",
      "The balanced order of context parallelism: cuts dimension `dim` into 2n equal chunks along an axis of n ranks; "
      "coordinate c gets chunks c and 2n-1-c.",
      [](const Zigzag& zigzag) { return std::tuple(zigzag.axis, zigzag.dim); })
      .def(nb::init<std::string, int>(), nb::arg("axis"), nb::arg("dim") = 1)
      .def_ro("dim", &Zigzag::dim)
      .def("__repr__", [](const Zigzag& zigzag) { return fmt::format("Zigzag('{}', {})", zigzag.axis, zigzag.dim); });
  bind_placement<Stages, std::string, std::vector<std::string>>(
      module, "Stages",
      "Sends the field only to the named stages along a pipeline axis: \"first\", \"last\", and names that the layout "
      "defines.",
      [](const Stages& stages) { return std::tuple(stages.axis, stages.names); })
      .def(
          "__init__",
          [](Stages* self, std::string axis, const nb::args& names) {
            std::vector<std::string> texts;
            if (!nb::try_cast(names, texts)) {
              throw InvalidType(
                  fmt::format("the stages of Stages(\"{}\") are {:.100}; each is a text, such as \"first\"", axis,
                              nb::repr(names).c_str()));
            }
            new (self) Stages{std::move(axis), std::move(texts)};
          },
          nb::arg("axis"), nb::arg("names"), nb::sig("def __init__(self, axis: str, *names: str) -> None"))
      .def_prop_ro(
          "names", [](const Stages& stages) { return nb::tuple(nb::cast(stages.names)); },
          nb::sig("def names(self) -> tuple[str, ...]"))
      .def("__repr__", [](const Stages& stages) {
        std::string names;
        for (const auto& name : stages.names) names += fmt::format(", '{}'", name);
        return fmt::format("Stages('{}'{})", stages.axis, names);
      });
  nb::class_<Layout>(module, "Layout", "The placements on a mesh of each field of a batch.")
      .def(
          "__init__",
          [](Layout* self, const nb::object& fields, const nb::object& otherwise,
             const std::vector<std::string>& optional, const std::optional<StageTable>& stages,
             const std::string& name) { new (self) Layout(layout_of(fields, otherwise, optional, stages, name)); },
          nb::arg("fields"), nb::kw_only(), nb::arg("otherwise") = nb::make_tuple(),
          nb::arg("optional") = std::vector<std::string>(), nb::arg("stages") = nb::none(), nb::arg("name") = "custom",
          nb::sig("def __init__(self, fields: collections.abc.Mapping[str, " PLACEMENTS "], *, otherwise: " PLACEMENTS
                  " = (), "
                  "optional: collections.abc.Sequence[str] = (), "
                  "stages: collections.abc.Mapping[str, collections.abc.Sequence[int]] | None = None, "
                  "name: str = 'custom') -> None"),
          "Field paths or patterns with '*', each with its placements: a Shard, Replicate, Zigzag or Stages, its text "
          "such as \"shard(dp,0)\", several of these in a list, or a dict from axes to Shard(dim) and Replicate() of "
          "torch.distributed.tensor. `otherwise`: placements of all other fields; `optional`: fields that a batch may "
          "lack; `stages`: coordinates along pp by name. Raises InvalidArgument.")
      .def_static("from_json", &Layout::from_json, nb::arg("text"),
                  "Returns the layout that a JSON text describes; see docs/data-loading.md. Raises InvalidArgument.")
      .def_static(
          "gpt", [](bool attention_mask) { return layouts::gpt({.attention_mask = attention_mask}); }, nb::kw_only(),
          nb::arg("attention_mask") = false,
          "Returns the layout of a GPT step's fields and the pipeline stages that need them.")
      .def("to_json", &Layout::to_json, "Returns the text that from_json() accepts.")
      .def_ro("name", &Layout::name)
      .def("__getstate__", &Layout::to_json)
      .def("__setstate__", [](Layout& self, const std::string& json) { new (&self) Layout(Layout::from_json(json)); })
      .def(
          "__eq__",
          [](const Layout& layout, nb::handle other) {
            return nb::isinstance<Layout>(other) && layout == nb::cast<const Layout&>(other);
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__repr__", [](const Layout& layout) {
        const auto text = nb::repr(nb::str(on_one_line(layout.to_json()).c_str()));
        return fmt::format("Layout.from_json({})", text.c_str());
      });
}

}  // namespace levada::python
