// Digests that identify a loader's items.
#pragma once

#include <cstdint>

#include "levada/tree/schema.h"

namespace levada::python {

/// Returns a digest of an item's structure, shapes and values; any process that makes the same item computes the same.
/// Reads only parts of long tensors and texts, so it takes microseconds. The result is even and below 2^62.
std::uint64_t item_digest(const FlatTree& item);

}  // namespace levada::python
