// A Tree taken apart: its structure, which seldom changes, and its leaves, which change every step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "levada/tree/tree.h"

namespace levada {

enum class LeafKind : std::uint8_t { none = 0, boolean = 1, integer = 2, real = 3, text = 4, bytes = 5, tensor = 6 };

/// What the structure says of one leaf.
struct LeafSpec {
  std::string path;  ///< as Tree::at() takes it
  LeafKind kind = LeafKind::none;
  DType dtype;            ///< of a tensor
  std::uint8_t rank = 0;  ///< of a tensor
  int alias_of = -1;      ///< the earlier leaf whose very memory, shape and strides this tensor shares, or -1

  bool operator==(const LeafSpec&) const = default;
};

/// Structure without data: containers, class names, keys, kinds, dtypes, ranks, aliases; no extents, no values.
/// Immutable; copies share. Equal fingerprints mean equal schemas.
class Schema {
 public:
  /// Of a lone None.
  Schema();

  /// XXH3-64 of encode().
  std::uint64_t fingerprint() const;
  /// Depth first, in the order of keys.
  std::span<const LeafSpec> leaves() const;
  /// Portable bytes.
  Bytes encode() const;
  /// Reads bytes that may lie: depth at most 64, counts bounded by the bytes there. Throws CorruptMessage.
  static Schema decode(ByteView bytes);

  /// The schema without the leaves for which `keep` (one entry a leaf) is false: a dict loses the key, a dict left
  /// empty by that stays; list, tuple and record get None in its place. An alias of a leaf not kept takes its
  /// place. Throws InvalidArgument if the size differs.
  Schema select(std::span<const bool> keep) const;

  struct Node;  ///< how it is kept; known to schema.cc alone
  explicit Schema(std::shared_ptr<const Node> root);

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// A Tree as structure and leaves; leaves[i] belongs to schema.leaves()[i].
struct FlatTree {
  Schema schema;
  std::vector<Leaf> leaves;
};

/// Takes a tree apart. Tensors that share memory, shape, strides and dtype become aliases. Throws InvalidArgument for
/// a tree deeper than 64.
FlatTree flatten(const Tree& tree);
/// Puts it together again; aliases share their tensor. Throws InvalidArgument if the leaves do not fit the schema.
Tree unflatten(const FlatTree& flat);

}  // namespace levada
