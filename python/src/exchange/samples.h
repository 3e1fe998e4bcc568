// Samples by id, as Python holds them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

/// The lengths of one item's sequences, in tokens.
using Lengths = std::vector<std::int64_t>;
/// As Python has them: one list an item, None for an absent one.
std::vector<std::optional<Lengths>> lengths_of(const Seqlens& seqlens);

}  // namespace levada::python
