// numpy's arrays over memory that is there.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "levada/tensor/tensor.h"

namespace levada::python {

/// Returns a module that is imported already; None otherwise. With the GIL.
nanobind::object imported(const char* module);

/// Makes arrays by numpy's own functions for C, which takes less than asking Python for numpy.array() does. With the
/// GIL.
class NumpyArrays {
 public:
  /// An array that views the memory of `tensor` and keeps it alive. Imports numpy. Throws Unsupported where numpy has
  /// no such elements.
  nanobind::object make(const Tensor& tensor, bool writable) const;

 private:
  nanobind::object descriptor(DType dtype) const;

  mutable void* const* functions_ = nullptr;                             ///< numpy's table; null before the first array
  mutable std::vector<std::pair<DType, nanobind::object>> descriptors_;  ///< those asked for so far
};

}  // namespace levada::python
