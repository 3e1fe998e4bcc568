// Python's callables and iterables as stages of a pipeline.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "levada/pipeline/graph.h"
#include "python/src/batch/tensors.h"
#include "python/src/pipeline/language_object.h"

namespace levada::python {

/// Whether an iterable gives a part of its items alone, and whether that is each n-th.
enum class DividesItself { no, in_parts, in_turns };

/// An iterable. `open` is a levada.pipeline.sources.SourceOpener of it. `allow_pickle`, here and below: whether the
/// state of an iterable may hold pickles.
std::shared_ptr<const pipeline::ItemSource> python_source(nanobind::object open, std::string description,
                                                          DividesItself divides, bool allow_pickle);

/// Returns a source of the same items, Trees, as objects of Python.
std::shared_ptr<const pipeline::ItemSource> shown_source(std::shared_ptr<const pipeline::ItemSource> trees,
                                                         TensorKind kind);

pipeline::Map map_of(nanobind::object function, pipeline::OnError on_error, int threads);
pipeline::Filter filter_of(nanobind::object predicate, pipeline::OnError on_error);
/// `length` gives an int of an item.
std::function<std::int64_t(const pipeline::Item&)> length_of(nanobind::object length);
/// `function` makes an iterable of an item.
pipeline::FlatMap flat_map_of(nanobind::object function, pipeline::OnError on_error, bool allow_pickle);
/// `open(inputs, open_context)` makes an iterable of a list of iterators; one that has state_dict() and
/// load_state_dict() goes on by these, any other from the beginning of the epoch.
pipeline::Transform transform_of(nanobind::object open, std::string what, bool allow_pickle);

}  // namespace levada::python
