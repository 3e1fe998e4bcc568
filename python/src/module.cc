#include <fmt/format.h>

#include <stdexcept>

#include "levada/engine/greeting.h"
#include "python/src/base/callables.h"
#include "python/src/bindings.h"

namespace levada::python {
namespace {

/// In this order: signatures name classes that must be bound first.
constexpr void (*bindings[])(nanobind::module_&) = {
    bind_errors,     bind_metrics,      bind_trees,        bind_packed_rows, bind_mesh,        bind_layout,
    bind_tokenizers, bind_text_formats, bind_remote_files, bind_launch,      bind_order,       bind_corpus,
    bind_sources,    bind_balance,      bind_feed,         bind_transport,   bind_conformance, bind_reduce,
    bind_samples,    bind_exchange,     bind_pickling,     bind_failures,    bind_stages,      bind_graph,
    bind_pipeline,   bind_history,      bind_command};

/// Throws if the program had loaded the library of another release before, which the system takes for this one.
void expect_own_library() {
  const auto library = own_release().name;
  if (library != LEVADA_VERSION) {
    throw std::runtime_error(
        fmt::format("the process has loaded liblevada {} already, and this package needs {}: link the program with the "
                    "library of levada.get_cmake_dir()",
                    library, LEVADA_VERSION));
  }
}

}  // namespace
}  // namespace levada::python

NB_MODULE(_levada, module) {
  levada::python::expect_own_library();
  module.doc() = "The C++ core of levada; use the package levada.";
  // Objects that a program still holds when the interpreter ends (batches, feeds) are freed with the process.
  nanobind::set_leak_warnings(false);
  levada::python::finish_calls_at_exit();
  for (const auto bind : levada::python::bindings) bind(module);
}
