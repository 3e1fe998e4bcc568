// Collates samples into a batch.
#pragma once

#include <cstdint>
#include <span>

#include "levada/tree/tree.h"

namespace levada::pipeline {

/// Returns one tree of the samples' structure, with tensors allocated from `memory` that stack the samples' tensors
/// along a new first dimension. Integers, reals and booleans become one-dimensional tensors; texts and bytes become
/// lists. `first`: the number of the first sample, for errors. Throws SourceError that names sample and field if a
/// sample differs in structure from the first, and Unsupported for values that cannot be stacked.
Tree collate(std::span<const Tree> samples, std::int64_t first, Memory& memory);

/// Returns the only row of a tensor with one row: the same memory without the first dimension.
Tensor only_row(const Tensor& rows);

}  // namespace levada::pipeline
