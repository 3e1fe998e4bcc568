// Serializes element types and shapes.
#pragma once

#include "levada/base/bytes.h"
#include "levada/tensor/dtype.h"
#include "levada/tensor/shape.h"

namespace levada {

/// Writes code, bits and lanes: four bytes.
void put_dtype(ByteWriter& writer, DType dtype);
/// Throws CorruptMessage for an unknown type.
DType get_dtype(ByteReader& reader);

/// Writes a byte for the rank, then the extents.
void put_shape(ByteWriter& writer, const Shape& shape);
/// Throws CorruptMessage for more than `most` dimensions. Does not check the extents.
Shape get_shape(ByteReader& reader, std::size_t most = Shape::max_rank);

}  // namespace levada
