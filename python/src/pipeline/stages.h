// Python's callables and iterables as stages of a pipeline.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "levada/pipeline/graph.h"
#include "python/src/batch/tensors.h"
#include "python/src/pipeline/language_object.h"

namespace levada::python {

/// Whether an iterable divides its items among processes, and if so, whether its part is every n-th item.
enum class DividesItself { no, in_parts, in_turns };

/// Returns an iterable as a source. `open` is its levada.pipeline.sources.SourceOpener. `allow_pickle`, here and below:
/// whether the state of an iterable may hold pickles.
std::shared_ptr<const pipeline::ItemSource> python_source(nanobind::object open, std::string description,
                                                          DividesItself divides, bool allow_pickle);

/// Returns a source of the same items, as Python objects instead of Trees.
std::shared_ptr<const pipeline::ItemSource> shown_source(std::shared_ptr<const pipeline::ItemSource> trees,
                                                         TensorKind kind);

pipeline::Map map_of(nanobind::object function, pipeline::OnError on_error, int threads);
pipeline::Filter filter_of(nanobind::object predicate, pipeline::OnError on_error);
/// `length` returns an int for an item.
std::function<std::int64_t(const pipeline::Item&)> length_of(nanobind::object length);
/// `function` returns an iterable for an item.
pipeline::FlatMap flat_map_of(nanobind::object function, pipeline::OnError on_error, bool allow_pickle);
/// `open(inputs, open_context)` returns an iterable for a list of iterators. An iterable with state_dict() and
/// load_state_dict() resumes from its state, any other one from the beginning of the epoch.
pipeline::Transform transform_of(nanobind::object open, std::string what, bool allow_pickle);

}  // namespace levada::python
