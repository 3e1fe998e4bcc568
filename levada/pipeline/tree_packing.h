// Items as bytes: for tree_values.cc alone. A count, then each item, depth first: a byte that says what it is, and
//   integer, real     8 bytes
//   text, bytes       a length, then the bytes
//   tensor            type (4 bytes), rank (1), extents; a small one's elements, of others nothing: the next buffer is
//   it list, tuple       a count, then the children dict, record      a count, the keys, of a record the class and its
//   state, then the children
// Counts and lengths are of 7 bits a byte, the lowest first, the last with the highest bit clear.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "levada/pipeline/item.h"

namespace levada::pipeline {

enum class NodeKind : std::uint8_t {
  none = 0,
  no = 1,
  yes = 2,
  integer = 3,
  real = 4,
  text = 5,
  bytes = 6,
  small_tensor = 7,
  tensor = 8,
  list = 9,
  tuple = 10,
  dict = 11,
  record = 12,
  integer_key = 13,
  text_key = 14,
  of_class = 15,
};

/// Tensors up to this many bytes cross among the other bytes.
inline constexpr std::size_t small_tensor_bytes = 512;

/// Throws InvalidArgument.
Values::Packed pack_trees(std::span<const Item> items);
/// Throws CorruptMessage.
std::vector<Item> unpack_trees(ByteView head, std::span<const std::span<std::byte>> buffers,
                               const std::shared_ptr<const void>& hold);

}  // namespace levada::pipeline
