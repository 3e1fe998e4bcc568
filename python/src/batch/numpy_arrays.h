// numpy arrays that view existing memory.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "levada/tensor/tensor.h"

namespace levada::python {

/// Returns a module if it has been imported already; otherwise None. With the GIL.
nanobind::object imported(const char* module);

/// Makes arrays with numpy's C functions, which is faster than calling numpy.array() from Python. With the GIL.
class NumpyArrays {
 public:
  /// Returns an array that views the memory of `tensor` and keeps it alive. Imports numpy. Throws Unsupported if numpy
  /// has no such element type.
  nanobind::object make(const Tensor& tensor, bool writable) const;

 private:
  nanobind::object descriptor(DType dtype) const;

  mutable void* const* functions_ = nullptr;                             ///< numpy's table; null before the first array
  mutable std::vector<std::pair<DType, nanobind::object>> descriptors_;  ///< types used so far
};

}  // namespace levada::python
