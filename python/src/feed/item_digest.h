// What tells one item of a loader from another.
#pragma once

#include <cstdint>

#include "levada/tree/schema.h"

namespace levada::python {

/// Returns a digest of an item's structure, shapes and values: the same in another process that makes the same item.
/// Of long tensors and texts only a part is read, so that it takes microseconds. Even, below 2^62.
std::uint64_t item_digest(const FlatTree& item);

}  // namespace levada::python
