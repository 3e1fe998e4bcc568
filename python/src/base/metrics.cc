#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "levada/base/metric.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {

void bind_metrics(nb::module_& module) {
  nb::class_<Metric>(module, "Metric", "The current value of one number of a run.")
      .def_ro("name", &Metric::name)
      .def_ro("labels", &Metric::labels, "Names and values.")
      .def_ro("value", &Metric::value)
      .def_prop_ro("id", &Metric::id, "The name with the labels.")
      .def("__repr__", [](const Metric& metric) { return fmt::format("<Metric {} = {}>", metric.id(), metric.value); });
  module.def(
      "to_prometheus", [](const std::vector<Metric>& metrics) { return to_prometheus(metrics); }, nb::arg("metrics"),
      "Prometheus's text format, version 0.0.4.");
}

}  // namespace levada::python
