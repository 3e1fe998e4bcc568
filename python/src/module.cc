#include "python/src/base/callables.h"
#include "python/src/bindings.h"

NB_MODULE(_levada, module) {
  module.doc() = "The C++ core of levada; use the package levada.";
  // What a program still holds when the interpreter ends (batches, feeds) goes with the process.
  nanobind::set_leak_warnings(false);
  levada::python::finish_calls_at_exit();
  levada::python::bind_errors(module);
  levada::python::bind_metrics(module);
  levada::python::bind_trees(module);
  levada::python::bind_packed_rows(module);
  levada::python::bind_mesh(module);
  levada::python::bind_layout(module);
  levada::python::bind_tokenizers(module);
  levada::python::bind_text_formats(module);
  levada::python::bind_remote_files(module);
  levada::python::bind_launch(module);
  levada::python::bind_corpus(module);
  levada::python::bind_sources(module);
  levada::python::bind_balance(module);
  levada::python::bind_feed(module);
  levada::python::bind_transport(module);
  levada::python::bind_conformance(module);
  levada::python::bind_reduce(module);
  levada::python::bind_samples(module);
  levada::python::bind_exchange(module);
  levada::python::bind_pickling(module);
  levada::python::bind_failures(module);
  levada::python::bind_stages(module);
  levada::python::bind_graph(module);
  levada::python::bind_pipeline(module);
  levada::python::bind_history(module);
  levada::python::bind_command(module);
}
