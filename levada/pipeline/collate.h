// Samples become a batch.
#pragma once

#include <cstdint>
#include <span>

#include "levada/tree/tree.h"

namespace levada::pipeline {

/// One tree of the samples' structure whose tensors, asked of `memory`, hold those of the samples one behind the other
/// along a new first dimension. Integers, reals and booleans become tensors of one dimension; texts and bytes lists.
/// `first`: the number of the first sample, for errors. Throws SourceError, naming sample and field, where a sample is
/// unlike the first; Unsupported for what cannot lie side by side.
Tree collate(std::span<const Tree> samples, std::int64_t first, Memory& memory);

/// The one row of a tensor that has one: the same memory without the first dimension.
Tensor only_row(const Tensor& rows);

}  // namespace levada::pipeline
