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

/// The position of a tensor leaf that is already in the message.
struct PlacedTensor {
  Shape shape;
  std::uint64_t offset = 0;  ///< from the start of the message, a multiple of 64
};

/// Returns the size of the body that write_message() writes for this content. Ignores the tensors among `leaves`.
/// Throws InvalidArgument if the leaves do not fit the schema or a plain value takes 4 GiB.
std::size_t body_bytes(const Schema& schema, std::span<const Leaf> leaves, std::size_t envelope_bytes,
                       bool with_schema);

/// Completes a message in `memory`: writes the prefix, and the body at `body_offset`. The elements of leaf i, if it is
/// a tensor, have already been written at placed[i].offset; entries of `placed` for other leaves and for aliases are
/// ignored. `envelope` is the caller's own header, which read_message() returns unchanged. Returns the total size of
/// the message. Throws InvalidArgument if it does not fit in `memory` or a leaf's offset is invalid.
std::size_t write_message(std::span<std::byte> memory, std::size_t body_offset, ByteView envelope, const Schema& schema,
                          bool with_schema, std::span<const Leaf> leaves, std::span<const PlacedTensor> placed);

/// Returns the whole tree as one message, including its schema. For files, tests and small control messages.
Bytes encode_tree(const Tree& tree, ByteView envelope = {});

/// The schemas that one end of a stream has seen, by fingerprint. Keeps at most 64; evicts the oldest.
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

/// Reads an untrusted message. Checks every offset, extent, count and size, including for overflow, before it is used.
/// The tensors in the result view `message` and share `owner`, which keeps it alive. Adds a schema in the message to
/// `cache`. Throws CorruptMessage, with the offset, for malformed input and if the schema is neither in the message nor
/// in `cache`.
Message read_message(ByteView message, const std::shared_ptr<const void>& owner, SchemaCache& cache);

/// Adds `tensor` to `digest`, which is used to compare the content of fields. Hashes the dtype's name, ':',
/// Shape::to_string(), ':', and the elements in C order.
void add_to_digest(Digest& digest, const TensorView& tensor);

}  // namespace levada
