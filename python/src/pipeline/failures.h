// Transfers exceptions that Python raises in a stage to another process, and raises them again there.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "levada/pipeline/failure.h"
#include "python/src/pipeline/language_object.h"

namespace levada::python {

/// Throws a StageFailed that holds the exception; the caller adds stage, process and item. With the GIL.
[[noreturn]] void throw_failed(const nanobind::python_error& raised);

/// Calls `work` with the GIL and returns its result. Rethrows Python exceptions through throw_failed().
template <typename Work>
auto in_python(Work work) {
  const nanobind::gil_scoped_acquire gil;
  try {
    return work();
  } catch (const nanobind::python_error& raised) {
    throw_failed(raised);
  }
}

}  // namespace levada::python
