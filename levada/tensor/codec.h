// Element types and shapes as bytes.
#pragma once

#include "levada/base/bytes.h"
#include "levada/tensor/dtype.h"
#include "levada/tensor/shape.h"

namespace levada {

/// Code, bits and lanes: four bytes.
void put_dtype(ByteWriter& writer, DType dtype);
/// Throws CorruptMessage for a type that is not known.
DType get_dtype(ByteReader& reader);

/// A byte for the rank, then the extents.
void put_shape(ByteWriter& writer, const Shape& shape);
/// Throws CorruptMessage for more than `most` dimensions. The extents may be anything.
Shape get_shape(ByteReader& reader, std::size_t most = Shape::max_rank);

}  // namespace levada
