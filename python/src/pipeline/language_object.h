// Python objects as items of a pipeline, and references to them that C++ may release on any thread.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "levada/pipeline/item.h"

namespace levada::python {

namespace pipeline = levada::pipeline;

/// Returns an item that holds the object, or its value if it is an int or a float.
pipeline::Item item_of(nanobind::object object);
/// Returns the object that an item holds; for a Tree, the batch that a feed would return. With the GIL.
nanobind::object object_of(pipeline::Item item);
/// Returns the same without taking it from the item.
nanobind::object object_of_const(const pipeline::Item& item);

/// A reference that may be copied and released on any thread, even after the interpreter has ended.
class Shared {
 public:
  Shared() = default;
  explicit Shared(nanobind::object object);

  /// With the GIL.
  nanobind::handle get() const { return held_.get(); }
  explicit operator bool() const { return held_ != nullptr; }

 private:
  std::shared_ptr<PyObject> held_;
};

}  // namespace levada::python
