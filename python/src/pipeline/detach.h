// Copies items that their producer may change.
#pragma once

#include <nanobind/nanobind.h>

#include "python/src/batch/tensors.h"

namespace levada::python {

/// Returns whether an object is of a class whose objects never change. With the GIL.
bool is_constant(PyObject* object);

/// Returns `object` if only the caller refers to it and its parts. Otherwise copies the lists, tuples, dicts, arrays of
/// numpy and tensors of torch in it. Returns an invalid object if it has a part of another class, or a part that
/// occurs twice. With the GIL.
nanobind::object detached(PyObject* object, TensorLibraries& libraries);

}  // namespace levada::python
