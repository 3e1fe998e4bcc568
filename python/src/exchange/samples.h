// Samples by id, as Python holds them.
#pragma once

#include <nanobind/nanobind.h>

#include "levada/exchange/sample_batch.h"
#include "python/src/batch/tensors.h"

namespace levada::python {

/// A SampleBatch, and what its tensors come out as. Guarded by the GIL.
struct Samples {
  SampleBatch batch;
  TensorKind kind = TensorKind::array;
  int readers = 0;  ///< calls that read the batch without the GIL

  /// The batch, to be changed. Throws InvalidArgument while another thread's call reads it.
  SampleBatch& changing();
};

}  // namespace levada::python
