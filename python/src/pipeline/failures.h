// What Python raises in a stage, as it travels, and raised again.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "levada/pipeline/failure.h"
#include "python/src/pipeline/language_object.h"

namespace levada::python {

/// Throws a StageFailed that holds what was raised; stage, process and item are for others to fill in. With the GIL.
[[noreturn]] void throw_failed(const nanobind::python_error& raised);

/// What `work` gives with the GIL; what it raises as throw_failed().
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
