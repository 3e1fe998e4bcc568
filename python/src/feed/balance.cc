// Division of a step's samples among ranks.
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>
#include <utility>

#include "levada/base/enum_names.h"
#include "levada/plan/step_plan.h"
#include "levada/report/balance_report.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

constexpr EnumName<PartSizes> count_names[] = {{"free", PartSizes::any}, {"equal", PartSizes::equal}};

/// Sample indexes by rank, then by micro-batch.
using Micros = std::vector<std::vector<std::vector<std::size_t>>>;

Micros plan_micros(const std::vector<std::array<std::int64_t, 4>>& sizes, int ranks, const Balance& balance) {
  const nb::gil_scoped_release released;
  std::vector<SampleSize> samples;
  samples.reserve(sizes.size());
  for (const auto& [tokens, squares, first, second] : sizes) samples.push_back({tokens, squares, {first, second}});
  const StepPlan plan = plan_step(samples, ranks, balance);
  Micros micros(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    for (int micro = 0; micro < plan.num_micro; ++micro) {
      micros[static_cast<std::size_t>(rank)].push_back(plan.at(rank, micro));
    }
  }
  return micros;
}

}  // namespace

void bind_balance(nb::module_& module) {
  nb::class_<Balance>(module, "BalancedBy", "Options for dividing the samples of a step over ranks.")
      .def(
          "__init__",
          [](Balance* self, const std::string& cost, const std::string& counts, const std::string& order,
             std::int64_t max_tokens, const std::string& wait, std::int64_t max_delay, int max_cp, std::string label) {
            new (self) Balance{.cost = SampleCost::parse(cost),
                               .sizes = parse_enum("counts", counts, count_names),
                               .max_tokens = max_tokens,
                               .order = parse_micro_order(order),
                               .wait = parse_wait(wait),
                               .max_delay = max_delay,
                               .max_cp = max_cp,
                               .label = std::move(label)};
            check_balance(*self);
          },
          nb::arg("cost"), nb::arg("counts"), nb::arg("order"), nb::arg("max_tokens"), nb::arg("wait") = "step",
          nb::arg("max_delay") = 0, nb::arg("max_cp") = 1, nb::arg("label") = "");
  nb::class_<report::BalanceReport>(module, "BalanceReport", "The work of the planned steps of a pass.")
      .def("to_json", &report::BalanceReport::to_json);
  module.def("plan_step", &plan_micros, nb::arg("sizes"), nb::arg("ranks"), nb::arg("balance"),
             "Divides the samples of a step. Returns their indexes by rank and micro-batch, ascending. sizes: the "
             "tokens of each sample, the sum of the squares of its segments' tokens, and two weights. The result is "
             "the same on any machine. Raises InvalidArgument.");
}

}  // namespace levada::python
