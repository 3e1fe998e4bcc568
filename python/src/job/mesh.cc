#include "levada/mesh/mesh.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/plan/plan.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

using Names = std::optional<Mesh::Names>;

std::vector<Axis> axes_of(const nb::kwargs& sizes) {
  std::vector<Axis> axes;
  for (const auto& [name, size] : sizes) {
    Axis axis{nb::cast<std::string>(name), 0};
    if (!nb::try_cast(size, axis.size)) {
      throw InvalidArgument(fmt::format("axis {} of a mesh has size {}; it must be a whole number from 1 to {}",
                                        axis.name, nb::repr(size).c_str(), std::numeric_limits<int>::max()));
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

Mesh mesh_of_job(const std::optional<std::string>& order, const Names& data_axes, const nb::kwargs& sizes) {
  const nb::module_ job = nb::module_::import_("levada.job.job");
  const int ranks = nb::cast<int>(job.attr("world_size")());
  auto axes = axes_of(sizes);
  const Mesh model(axes, data_axes);
  if (ranks % model.size() != 0) {
    throw InvalidArgument(fmt::format("the job has {} ranks, which '{}' does not divide", ranks, model.to_string()));
  }
  if (model.data_axes().empty() && !data_axes) axes.push_back({"dp", ranks / model.size()});
  const Mesh mesh = Mesh::ordered(std::move(axes), order ? *order : std::string(Mesh::default_order), data_axes);
  if (mesh.size() != ranks) {
    throw InvalidArgument(
        fmt::format("the mesh '{}' has {} ranks, the job has {}", mesh.to_string(), mesh.size(), ranks));
  }
  nb::module_::import_("levada.job.meshes").attr("check_megatron")(mesh);
  return mesh;
}

/// The mesh stores this process's coordinates in the DeviceMesh for own_rank(), or None if the process is not in it.
nb::object mesh_of_devices(nb::handle device_mesh, const Names& data_axes) {
  const nb::object names = device_mesh.attr("mesh_dim_names");
  if (names.is_none())
    throw InvalidArgument("the device mesh has no mesh_dim_names; name its axes, such as ('dp', 'tp')");
  const nb::object ranks = device_mesh.attr("mesh");
  const auto order = nb::cast<std::vector<int>>(ranks.attr("flatten")().attr("tolist")());
  if (!std::is_sorted(order.begin(), order.end())) {
    throw InvalidArgument("the ranks of the device mesh must ascend in row-major order, as in a Mesh");
  }
  std::vector<Axis> axes;
  const auto sizes = nb::cast<std::vector<int>>(nb::list(ranks.attr("shape")));
  for (std::size_t i = 0; i < sizes.size(); ++i) axes.push_back({nb::cast<std::string>(names[i]), sizes[i]});
  nb::object mesh = nb::cast(Mesh(std::move(axes), data_axes));
  mesh.attr("_coordinates") = device_mesh.attr("get_coordinate")();
  return mesh;
}

/// Returns this process's rank in a mesh: in the whole job, in a DeviceMesh, or in some axes of such a mesh. Throws
/// InvalidArgument if the process's place in the mesh is unknown.
int own_rank(nb::handle self) {
  const auto& mesh = nb::cast<const Mesh&>(self);
  if (const nb::object whole = nb::getattr(self, "_whole", nb::none()); !whole.is_none()) {
    const auto& larger = nb::cast<const Mesh&>(whole);
    const int rank = own_rank(whole);
    std::vector<int> coordinates;
    for (const auto& axis : mesh.axes()) coordinates.push_back(larger.coordinate(rank, axis.name));
    return mesh.rank_at(coordinates);
  }
  const nb::module_ job = nb::module_::import_("levada.job.job");
  const int rank = nb::cast<int>(job.attr("rank")());
  if (nb::hasattr(self, "_coordinates")) {
    const nb::object coordinates = self.attr("_coordinates");
    if (!coordinates.is_none()) return mesh.rank_at(nb::cast<std::vector<int>>(coordinates));
    throw InvalidArgument(fmt::format(
        "rank {} of the job is not in the device mesh of '{}'; pass a rank of the mesh first", rank, mesh.to_string()));
  }
  const int ranks = nb::cast<int>(job.attr("world_size")());
  if (mesh.size() == ranks) return rank;
  throw InvalidArgument(
      fmt::format("the mesh '{}' has {} ranks and the job has {}, so that rank {} of the job has no known place in the "
                  "mesh; pass a rank of the mesh first",
                  mesh.to_string(), mesh.size(), ranks, rank));
}

std::string no_axis(const Mesh& mesh, const std::string& name) {
  return fmt::format("the mesh '{}' has no axis '{:.40}'", mesh.to_string(), printable(name));
}

/// Returns an axis that the mesh has, or that counts as size 1 if absent. Throws InvalidArgument for any other name,
/// along which every rank would be at 0.
const std::string& axis_of(const Mesh& mesh, const std::string& name) {
  if (mesh.has_axis(name) || mesh.may_lack(name)) return name;
  throw InvalidArgument(no_axis(mesh, name) + (role_of(name) == AxisRole::data
                                                   ? "; data_coordinate() and data_axes are of all its data axes"
                                                   : ""));
}

const Mesh::Names& axes_named(const Mesh& mesh, const Mesh::Names& names) {
  for (const auto& name : names) axis_of(mesh, name);
  return names;
}

/// The part keeps a reference to its mesh for own_rank().
nb::object part_of_mesh(nb::handle self, const std::variant<std::string, std::vector<std::string>>& names) {
  const auto& mesh = nb::cast<const Mesh&>(self);
  const auto* one = std::get_if<std::string>(&names);
  const auto wanted = one != nullptr ? std::vector{*one} : std::get<std::vector<std::string>>(names);
  for (const auto& name : wanted) {
    if (!mesh.has_axis(name)) throw nb::key_error(no_axis(mesh, name).c_str());
  }
  std::vector<Axis> axes;
  Mesh::Names data_axes;
  for (const auto& axis : mesh.axes()) {
    if (std::ranges::find(wanted, axis.name) == wanted.end()) continue;
    axes.push_back(axis);
    if (std::ranges::find(mesh.data_axes(), axis.name) != mesh.data_axes().end()) data_axes.push_back(axis.name);
  }
  nb::object part = nb::cast(Mesh(std::move(axes), data_axes));
  part.attr("_whole") = self;
  return part;
}

std::vector<std::pair<std::string, int>> axis_list(const Mesh& mesh) {
  std::vector<std::pair<std::string, int>> axes;
  for (const auto& axis : mesh.axes()) axes.emplace_back(axis.name, axis.size);
  return axes;
}

}  // namespace

void bind_mesh(nb::module_& module) {
  nb::class_<Mesh>(module, "Mesh", nb::dynamic_attr(),
                   "The ranks of a job as named axes, row-major: the last varies fastest.")
      .def(
          "__init__",
          [](Mesh* self, const Names& data_axes, const nb::kwargs& axes) { new (self) Mesh(axes_of(axes), data_axes); },
          nb::kw_only(), nb::arg("data_axes") = nb::none(), nb::arg("axes"),
          nb::sig("def __init__(self, *, data_axes: collections.abc.Sequence[str] | None = None, **axes: int) -> None"),
          "Mesh(dp=2, tp=2) has four ranks; Mesh() has one. `data_axes`: the axes along which batches differ; by "
          "default "
          "those named dp, dp_replicate, dp_shard, fsdp, data or ddp. Raises InvalidArgument for a size below one and "
          "for a data axis that is not among the axes.")
      .def_static("parse", &Mesh::parse, nb::arg("text"), nb::kw_only(), nb::arg("data_axes") = nb::none(),
                  nb::sig("def parse(text: str, *, data_axes: collections.abc.Sequence[str] | None = None) -> Mesh"),
                  "Returns the mesh that a text such as 'dp=2,tp=2' describes.")
      .def_static(
          "from_env", &mesh_of_job, nb::kw_only(), nb::arg("order") = nb::none(), nb::arg("data_axes") = nb::none(),
          nb::arg("axes"),
          nb::sig("def from_env(*, order: str | None = None, data_axes: collections.abc.Sequence[str] | None = None, "
                  "**axes: int) -> Mesh"),
          "Returns the mesh of this process's job of world_size() ranks. Unless a data axis is passed, dp gets the "
          "ranks that the other axes leave. `order` names the axes from the fastest to the slowest, whatever the order "
          "of the arguments: by default 'tp-sp-cp-ep-dp-pp', as in Megatron-LM. There, dp means all data axes that "
          "`order` does not name. Raises InvalidArgument if the axes do not multiply to the job's size, and if "
          "Megatron's process groups are initialized with other ranks.")
      .def_static(
          "from_device_mesh", &mesh_of_devices, nb::arg("device_mesh"), nb::kw_only(),
          nb::arg("data_axes") = nb::none(),
          nb::sig(
              "def from_device_mesh(device_mesh: object, *, data_axes: collections.abc.Sequence[str] | None = None) "
              "-> Mesh"),
          "Returns a mesh with the axes of a torch.distributed DeviceMesh. For a DeviceMesh over some of the job's "
          "ranks, it is a mesh of their group. Raises InvalidArgument without mesh_dim_names, and unless the ranks "
          "ascend in row-major order.")
      .def_prop_ro("size", &Mesh::size, "Total number of ranks.")
      .def_prop_ro("axes", &axis_list, "Names and sizes, in order.")
      .def_prop_ro("data_axes", &Mesh::data_axes, "The axes along which batches differ, in order.")
      .def_prop_ro("data_size", &Mesh::data_size, "Number of ranks along all data axes together.")
      .def("data_coordinate", &Mesh::data_coordinate, nb::arg("rank"),
           "Returns the position of a rank along all data axes together, row-major.")
      .def(
          "axis_size", [](const Mesh& mesh, const std::string& name) { return mesh.axis_size(axis_of(mesh, name)); },
          nb::arg("name"),
          "Returns the number of ranks along an axis; 1 for an absent axis that shares data, such as tp, cp and pp. "
          "Raises InvalidArgument for any other absent axis.")
      .def(
          "coordinate",
          [](const Mesh& mesh, int rank, const std::string& axis) {
            return mesh.coordinate(rank, axis_of(mesh, axis));
          },
          nb::arg("rank"), nb::arg("axis"), "Returns the position of a rank along an axis that axis_size() accepts.")
      .def(
          "coordinate",
          [](nb::handle self, const std::string& axis) {
            const auto& mesh = nb::cast<const Mesh&>(self);
            return mesh.coordinate(own_rank(self), axis_of(mesh, axis));
          },
          nb::arg("axis"), nb::sig("def coordinate(self, axis: str) -> int"),
          "Returns the position of this process along an axis of a mesh of the whole job, of a DeviceMesh, or of some "
          "axes of either. Raises InvalidArgument for any other mesh, and on ranks outside the DeviceMesh.")
      .def(
          "group",
          [](const Mesh& mesh, int rank, const Mesh::Names& axes) { return mesh.group(rank, axes_named(mesh, axes)); },
          nb::arg("rank"), nb::arg("axes"),
          "Returns the ranks that differ from `rank` only along these axes, ascending. axis_size() must accept the "
          "axes.")
      .def(
          "group",
          [](nb::handle self, const Mesh::Names& axes) {
            const auto& mesh = nb::cast<const Mesh&>(self);
            return mesh.group(own_rank(self), axes_named(mesh, axes));
          },
          nb::arg("axes"), nb::sig("def group(self, axes: collections.abc.Sequence[str]) -> list[int]"),
          "Returns the ranks of the mesh that differ from this process only along these axes, for the meshes that "
          "coordinate(axis) accepts.")
      .def("__getitem__", &part_of_mesh, nb::arg("axes"),
           nb::sig("def __getitem__(self, axes: str | tuple[str, ...], /) -> Mesh"),
           "Returns the mesh of only these axes, in this mesh's order, whose ranks are the positions along them. "
           "Raises KeyError for an absent axis.")
      .def("describe", &Mesh::describe, nb::arg("rank"), "Returns a rank's coordinates as text, such as 'dp0 tp1'.")
      .def(
          "__eq__",
          [](const Mesh& mesh, nb::handle other) {
            return nb::isinstance<Mesh>(other) && mesh == nb::cast<const Mesh&>(other);
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const Mesh& mesh) { return std::hash<std::string>()(mesh.to_string()); })
      // Leaves out this process's coordinates in a DeviceMesh: the process that loads a pickle has different ones.
      .def("__getstate__", [](const Mesh& mesh) { return std::pair(mesh.to_string(), mesh.data_axes()); })
      .def("__setstate__",
           [](Mesh& self, const std::pair<std::string, Mesh::Names>& state) {
             new (&self) Mesh(Mesh::parse(state.first, state.second));
           })
      .def("__str__", &Mesh::to_string)
      .def(
          "check_groups",
          [](nb::handle mesh, const nb::kwargs& groups) {
            nb::module_::import_("levada.job.meshes").attr("check_groups")(mesh, "the process group", groups);
          },
          nb::sig("def check_groups(self, **groups: object) -> None"),
          "Compares process groups of this process, by axis ('dp' for all data axes together), with the mesh of the "
          "whole job. Raises InvalidArgument if a group has other ranks than the mesh.")
      .def("__repr__", [](const Mesh& mesh) {
        const auto text = mesh.to_string();
        if (mesh == Mesh::parse(text)) return fmt::format("Mesh.parse('{}')", text);
        const nb::object data_axes = nb::cast(mesh.data_axes());
        return fmt::format("Mesh.parse('{}', data_axes={})", text, nb::repr(data_axes).c_str());
      });
  module.def(
      "readers_of",
      [](const std::string& readers, const Mesh& mesh, const std::vector<int>& host_of) {
        return Readers::parse(readers).of(mesh, host_of);
      },
      nb::arg("readers"), nb::arg("mesh"), nb::arg("host_of"),
      "Returns the rank that reads for each rank of the mesh. `host_of`: the host of each rank.");
}

}  // namespace levada::python
