// Samples by id, as held by Python.
#pragma once

#include <nanobind/nanobind.h>

#include "levada/exchange/sample_batch.h"
#include "python/src/batch/tensors.h"

namespace levada::python {

/// A SampleBatch and the kind in which its tensors are returned. Guarded by the GIL.
struct Samples {
  SampleBatch batch;
  TensorKind kind = TensorKind::array;
  int readers = 0;  ///< number of calls that read the batch without the GIL

  /// Returns the batch for modification. Throws InvalidArgument while another thread's call reads it.
  SampleBatch& changing();
};

}  // namespace levada::python
