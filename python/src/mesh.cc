#include "levada/mesh/mesh.h"

#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/plan/layout.h"
#include "levada/plan/plan.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

std::vector<Axis> axes_of(const nb::kwargs& sizes) {
  std::vector<Axis> axes;
  for (const auto& [name, size] : sizes) axes.push_back({nb::cast<std::string>(name), nb::cast<int>(size)});
  return axes;
}

Mesh mesh_of_job(const nb::kwargs& sizes) {
  const int ranks = nb::cast<int>(nb::module_::import_("levada._job").attr("world_size")());
  auto axes = axes_of(sizes);
  const Mesh model(axes);
  if (ranks % model.size() != 0) {
    throw InvalidArgument(fmt::format("the job has {} ranks, which '{}' does not divide", ranks, model.to_string()));
  }
  if (!model.has_axis("dp")) axes.insert(axes.begin(), {"dp", ranks / model.size()});
  Mesh mesh(std::move(axes));
  if (mesh.size() == ranks) return mesh;
  throw InvalidArgument(
      fmt::format("the mesh '{}' has {} ranks, the job has {}", mesh.to_string(), mesh.size(), ranks));
}

Mesh mesh_of_devices(nb::handle device_mesh) {
  const nb::object names = device_mesh.attr("mesh_dim_names");
  if (names.is_none()) throw InvalidArgument("the device mesh has no mesh_dim_names; name its axes, as ('dp', 'tp')");
  const nb::object ranks = device_mesh.attr("mesh");
  const auto order = nb::cast<std::vector<int>>(ranks.attr("flatten")().attr("tolist")());
  if (!std::is_sorted(order.begin(), order.end())) {
    throw InvalidArgument("the device mesh does not list its ranks in rising order, row after row, as a Mesh does");
  }
  std::vector<Axis> axes;
  const auto sizes = nb::cast<std::vector<int>>(nb::list(ranks.attr("shape")));
  for (std::size_t i = 0; i < sizes.size(); ++i) axes.push_back({nb::cast<std::string>(names[i]), sizes[i]});
  return Mesh(std::move(axes));
}

std::vector<std::pair<std::string, int>> axis_list(const Mesh& mesh) {
  std::vector<std::pair<std::string, int>> axes;
  for (const auto& axis : mesh.axes()) axes.emplace_back(axis.name, axis.size);
  return axes;
}

void bind_layout(nb::module_& module) {
  nb::class_<Layout>(module, "Layout", "For each field of a batch, its placements on a mesh.")
      .def_static("from_json", &Layout::from_json, nb::arg("text"),
                  "The layout of a JSON text, as docs/data-loading.md tells. Raises InvalidArgument.")
      .def_static(
          "gpt", [](bool attention_mask) { return layouts::gpt({.attention_mask = attention_mask}); }, nb::kw_only(),
          nb::arg("attention_mask") = false, "The fields of a GPT step and the pipeline stages that need them.")
      .def("to_json", &Layout::to_json, "The layout as from_json() takes it.")
      .def_ro("name", &Layout::name)
      .def(
          "__eq__",
          [](const Layout& layout, nb::handle other) {
            return nb::isinstance<Layout>(other) && layout == nb::cast<const Layout&>(other);
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__repr__", [](const Layout& layout) { return fmt::format("Layout.from_json('{}')", layout.to_json()); });
}

}  // namespace

void bind_mesh(nb::module_& module) {
  nb::class_<Mesh>(module, "Mesh", "The ranks of a job as named axes, row-major: the last varies fastest.")
      .def(
          "__init__", [](Mesh* self, const nb::kwargs& axes) { new (self) Mesh(axes_of(axes)); },
          nb::sig("def __init__(self, **axes: int) -> None"),
          "Mesh(dp=2, tp=2) has four ranks; Mesh() has one. Raises InvalidArgument for a size below one.")
      .def_static("parse", &Mesh::parse, nb::arg("text"), "The mesh of a text such as 'dp=2,tp=2'.")
      .def_static(
          "from_env", &mesh_of_job, nb::sig("def from_env(**axes: int) -> Mesh"),
          "The mesh of this process's job, whose ranks world_size() counts: dp, unless it is given, takes those that "
          "the other axes leave. Raises InvalidArgument where the axes do not multiply to the job's size.")
      .def_static(
          "from_device_mesh", &mesh_of_devices, nb::arg("device_mesh"),
          nb::sig("def from_device_mesh(device_mesh: object) -> Mesh"),
          "The axes of a torch.distributed DeviceMesh; of one over some of the job's ranks, a mesh of their group. "
          "Raises InvalidArgument for one without mesh_dim_names, or whose ranks do not rise row after row.")
      .def_prop_ro("size", &Mesh::size, "Ranks in all.")
      .def_prop_ro("axes", &axis_list, "Names and sizes, in order.")
      .def("axis_size", &Mesh::axis_size, nb::arg("name"), "Ranks along an axis; 1 for one that the mesh has not.")
      .def("coordinate", &Mesh::coordinate, nb::arg("rank"), nb::arg("axis"), "Position of a rank along an axis.")
      .def("group", &Mesh::group, nb::arg("rank"), nb::arg("axes"),
           "The ranks that differ from `rank` at most along these axes, ascending.")
      .def("describe", &Mesh::describe, nb::arg("rank"), "A rank's coordinates for people: 'dp0 tp1'.")
      .def(
          "__eq__",
          [](const Mesh& mesh, nb::handle other) {
            return nb::isinstance<Mesh>(other) && mesh == nb::cast<const Mesh&>(other);
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const Mesh& mesh) { return std::hash<std::string>()(mesh.to_string()); })
      .def("__str__", &Mesh::to_string)
      .def("__repr__", [](const Mesh& mesh) { return fmt::format("Mesh.parse('{}')", mesh.to_string()); });
  bind_layout(module);
  module.def(
      "reads",
      [](const std::string& readers, const Mesh& mesh, const std::vector<int>& host_of, int rank) {
        const auto of = Readers::parse(readers).of(mesh, host_of);
        return rank < static_cast<int>(of.size()) && of[static_cast<std::size_t>(rank)] == rank;
      },
      nb::arg("readers"), nb::arg("mesh"), nb::arg("host_of"), nb::arg("rank"), "Whether a rank is a reader.");
}

}  // namespace levada::python
