// The functions that add each source file's classes and functions to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace levada::python {

void bind_errors(nanobind::module_& module);
void bind_metrics(nanobind::module_& module);
void bind_trees(nanobind::module_& module);
void bind_packed_rows(nanobind::module_& module);
void bind_mesh(nanobind::module_& module);
void bind_layout(nanobind::module_& module);
void bind_launch(nanobind::module_& module);
void bind_tokenizers(nanobind::module_& module);
void bind_text_formats(nanobind::module_& module);
void bind_remote_files(nanobind::module_& module);
void bind_order(nanobind::module_& module);
void bind_corpus(nanobind::module_& module);
void bind_sources(nanobind::module_& module);
void bind_balance(nanobind::module_& module);
void bind_feed(nanobind::module_& module);
void bind_transport(nanobind::module_& module);
void bind_conformance(nanobind::module_& module);
void bind_reduce(nanobind::module_& module);
void bind_samples(nanobind::module_& module);
void bind_exchange(nanobind::module_& module);
void bind_pickling(nanobind::module_& module);
void bind_failures(nanobind::module_& module);
void bind_stages(nanobind::module_& module);
void bind_history(nanobind::module_& module);
void bind_graph(nanobind::module_& module);
void bind_pipeline(nanobind::module_& module);
void bind_command(nanobind::module_& module);

}  // namespace levada::python
