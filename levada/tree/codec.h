// Messages: a flattened tree as bytes in memory that an engine sends. Leaves are 64-byte aligned, so that a receiver
// can view them in place.
//
// A message is
// clang-format off
//   prefix   64 bytes: magic (4), version (4), the schema's fingerprint (8), the body's offset (8) and size (8), the
//            message's total size (8), reserved (16), XXH3-64 of the body seeded with that of the 56 bytes before (8)
//   leaves   tensors' elements in C order, each at a multiple of 64, in any order, after the prefix, before or after
//            the body
//   body     the envelope (a 32-bit length, then the bytes); 1 and the schema (as the envelope) unless the receiver has
//            it already, else 0; then leaf by leaf each tensor's extents and offset and each plain value; nothing for
//            an alias
// clang-format on
// All integers are little-endian. The hash detects truncated or overwritten messages, not malicious ones; elements are
// not hashed.
#pragma once

#include <optional>
#include <unordered_map>

#include "levada/base/hash.h"
#include "levada/tree/schema.h"

namespace levada {

inline constexpr std::size_t leaf_alignment = 64;
inline constexpr std::size_t message_prefix_bytes = 64;

/// A tensor leaf that is already in the message.
struct PlacedTensor {
  Shape shape;
  std::uint64_t offset = 0;  ///< from the start of the message, a multiple of 64
};

/// Returns the size of the body that write_message() writes for this content. Ignores the tensors among `leaves`.
/// Throws InvalidArgument if the leaves do not fit the schema or a plain value takes 4 GiB.
std::size_t body_bytes(const Schema& schema, std::span<const Leaf> leaves, std::size_t envelope_bytes,
                       bool with_schema);

/// Completes a message in `memory` whose tensors' elements have been written at placed[i].offset (i is the leaf's
/// number; entries of other leaves and of aliases are ignored): writes the prefix, and the body at `body_offset`.
/// `envelope` is the caller's own header, returned unchanged by read_message(). Returns the total size of the message.
/// Throws InvalidArgument if it does not fit in `memory`, or a leaf's offset is invalid.
std::size_t write_message(std::span<std::byte> memory, std::size_t body_offset, ByteView envelope, const Schema& schema,
                          bool with_schema, std::span<const Leaf> leaves, std::span<const PlacedTensor> placed);

/// Returns the whole tree as one message, schema included: for files, tests and small control messages.
Bytes encode_tree(const Tree& tree, ByteView envelope = {});

/// Schemas that one end of a stream has received, by fingerprint. Bounded: the oldest are evicted beyond 64.
class SchemaCache {
 public:
  std::optional<Schema> find(std::uint64_t fingerprint) const;
  void add(const Schema& schema);

 private:
  std::unordered_map<std::uint64_t, Schema> schemas_;
  std::vector<std::uint64_t> order_;
};

/// A decoded message. Tensors view the message's bytes and share `owner`.
struct Message {
  Bytes envelope;
  FlatTree content;
  bool had_schema = false;
};

/// Reads an untrusted message: every offset, extent, count and size is checked, also for overflow, before it is used.
/// `owner` keeps `message` alive in the tensors that view it. A schema in the message is added to `cache`; if the
/// schema is in neither, that is an error. Throws CorruptMessage with the offset.
Message read_message(ByteView message, const std::shared_ptr<const void>& owner, SchemaCache& cache);

/// Adds dtype name, shape and contiguous bytes of `tensor` to `digest`, with which the content of a field is compared.
/// The bytes hashed: name, ':', Shape::to_string(), ':', then the elements in C order.
void add_to_digest(Digest& digest, const TensorView& tensor);

}  // namespace levada
