// The cases of the engine contract, for engines that Python reaches.
#include "levada/engine/conformance.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "levada/base/error.h"
#include "python/src/bindings.h"
#include "python/src/job/launch.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

std::vector<std::tuple<std::string, int, bool>> conformance_cases() {
  std::vector<std::tuple<std::string, int, bool>> all;
  for (const auto& each : conformance::cases()) all.emplace_back(each.name, each.min_ranks, each.ends_group);
  return all;
}

void conform(const Membership& job, const std::string& name) {
  const auto cases = conformance::cases();
  const auto found = std::find_if(cases.begin(), cases.end(), [&](const auto& each) { return each.name == name; });
  if (found == cases.end()) throw InvalidArgument(fmt::format("there is no case '{}'", name));
  const EngineWithoutGil engine(job.shared());
  found->run(engine.shared());
}

}  // namespace

void bind_conformance(nb::module_& module) {
  module.def(
      "conformance_cases", &conformance_cases,
      "Returns, for each case, its name, its minimum number of ranks, and whether the engine is unusable afterwards.");
  module.def("conform", &conform, nb::arg("job"), nb::arg("name"), "Runs a case on this rank. Collective.");
}

}  // namespace levada::python
