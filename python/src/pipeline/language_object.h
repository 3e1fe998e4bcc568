// Python's objects among the items of a pipeline, and held by C++ that lets go of them on any thread.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "levada/pipeline/item.h"

namespace levada::python {

namespace pipeline = levada::pipeline;

/// An item that is this object, or its value where that is an int or a float.
pipeline::Item item_of(nanobind::object object);
/// The object that an item is; of a Tree, what batches of a feed are. With the GIL.
nanobind::object object_of(pipeline::Item item);
/// The same, without taking it from the item.
nanobind::object object_of_const(const pipeline::Item& item);

/// A reference that may be copied and dropped on any thread, also when the interpreter has ended.
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
