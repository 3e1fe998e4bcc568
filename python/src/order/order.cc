#include "levada/order/sample_order.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <tuple>
#include <utility>

#include "levada/base/error.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

using Part = std::tuple<std::string, std::int64_t, double>;

std::vector<double> doubles_of(const nb::bytes& given) {
  if (given.size() % sizeof(double) != 0) throw InvalidArgument("weights must be the bytes of float64 numbers");
  std::vector<double> numbers(given.size() / sizeof(double));
  if (!numbers.empty()) std::memcpy(numbers.data(), given.data(), given.size());
  return numbers;
}

}  // namespace

void bind_order(nb::module_& module) {
  module.attr("PERMUTATION_VERSION") = Permutation::version;
  module.attr("MIX_VERSION") = Mix::version;
  module.def("derived_seed", &derived_seed, nb::arg("seed"), nb::arg("stream"),
             "Returns a seed derived for the use numbered `stream`.");
  module.def("item_seed", &item_seed, nb::arg("seed"), nb::arg("epoch"), nb::arg("position"),
             "Returns the seed of all random numbers for the draw at a position of an epoch.");
  nb::class_<SampleOrder>(module, "SampleOrder", "Maps each draw from some data sets to an item. One thread at a time.")
      .def(
          "__init__",
          [](SampleOrder* self, const std::vector<Part>& parts, std::uint64_t seed, bool shuffle, bool mix,
             const nb::bytes& weights, std::int64_t draws) {
            std::vector<OrderedPart> ordered;
            for (const auto& [name, items, share] : parts) ordered.push_back({name, items, share});
            new (self) SampleOrder(
                ordered,
                {.seed = seed, .shuffles = shuffle, .mixes = mix, .weights = doubles_of(weights), .draws = draws});
          },
          nb::arg("parts"), nb::arg("seed"), nb::kw_only(), nb::arg("shuffle") = false, nb::arg("mix") = false,
          nb::arg("weights") = nb::bytes("", 0), nb::arg("draws") = 0,
          "`parts`: name, number of items and share of each data set. `weights`: the bytes of one float64 per item, to "
          "draw with replacement. `draws`: the number of draws in an epoch; 0 means the number of items. Raises "
          "InvalidArgument.")
      .def_prop_ro("items", &SampleOrder::items)
      .def_prop_ro("draws", &SampleOrder::draws)
      .def(
          "numbers",
          [](SampleOrder& order, std::int64_t epoch, std::int64_t first, std::int64_t count) {
            std::vector<std::int64_t> numbers;
            for (std::int64_t p = first; p < first + count; ++p) numbers.push_back(order.at(epoch, p));
            return numbers;
          },
          nb::arg("epoch"), nb::arg("first"), nb::arg("count"),
          "Returns the items of `count` positions of an epoch, from `first` on.");
}

}  // namespace levada::python
