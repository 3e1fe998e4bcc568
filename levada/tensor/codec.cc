#include "levada/tensor/codec.h"

#include <fmt/format.h>

namespace levada {

void put_dtype(ByteWriter& writer, DType dtype) {
  writer.put(dtype.code);
  writer.put(dtype.bits);
  writer.put(dtype.lanes);
}

DType get_dtype(ByteReader& reader) {
  const DType dtype{reader.get<std::uint8_t>(), reader.get<std::uint8_t>(), reader.get<std::uint16_t>()};
  if (!dtype.is_known()) reader.fail(fmt::format("a tensor of unknown dtype {}", dtype.name()));
  return dtype;
}

void put_shape(ByteWriter& writer, const Shape& shape) {
  writer.put(static_cast<std::uint8_t>(shape.rank()));
  for (const std::int64_t extent : shape) writer.put(extent);
}

Shape get_shape(ByteReader& reader, std::size_t max_rank) {
  const std::size_t rank = reader.get<std::uint8_t>();
  if (rank > max_rank) reader.fail(fmt::format("a shape of {} dimensions", rank));
  Shape shape;
  for (std::size_t dim = 0; dim < rank; ++dim) shape.push_back(reader.get<std::int64_t>());
  return shape;
}

}  // namespace levada
