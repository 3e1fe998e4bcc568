// Serializes element types and shapes.
#pragma once

#include "levada/base/bytes.h"
#include "levada/tensor/dtype.h"
#include "levada/tensor/shape.h"

namespace levada {

/// Writes code, bits and lanes: four bytes.
void put_dtype(ByteWriter& writer, DType dtype);
/// Reads an element type. Throws CorruptMessage if it is unknown.
DType get_dtype(ByteReader& reader);

/// Writes the rank as one byte, then the extents.
void put_shape(ByteWriter& writer, const Shape& shape);
/// Reads a shape. Throws CorruptMessage for more than `max_rank` dimensions. Does not check the extents.
Shape get_shape(ByteReader& reader, std::size_t max_rank = Shape::max_rank);

}  // namespace levada
