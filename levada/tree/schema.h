// A flattened Tree: its structure, which seldom changes, and its leaves, which change every step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "levada/tree/tree.h"

namespace levada {

enum class LeafKind : std::uint8_t { none = 0, boolean = 1, integer = 2, real = 3, text = 4, bytes = 5, tensor = 6 };

/// The structural part of one leaf.
struct LeafSpec {
  std::string path;  ///< in the syntax of Tree::at()
  LeafKind kind = LeafKind::none;
  DType dtype;            ///< for a tensor
  std::uint8_t rank = 0;  ///< for a tensor
  int alias_of = -1;      ///< the earlier leaf whose memory, shape and strides this tensor shares, or -1

  bool operator==(const LeafSpec&) const = default;
};

/// Limits on every tree. They let a decoder reject input that would exhaust memory.
inline constexpr int max_tree_depth = 64;                            ///< nesting of containers
inline constexpr std::size_t max_tree_nodes = std::size_t{1} << 18;  ///< leaves and containers
inline constexpr std::size_t max_path_bytes = std::size_t{1} << 26;  ///< total length of all leaves' paths

/// The structure of a tree without its data: containers, class names, keys, kinds, dtypes, ranks and aliases, but no
/// extents or values. Immutable; copies share their state. Schemas with equal fingerprints are considered equal.
class Schema {
 public:
  /// Constructs the schema of a single None.
  Schema();

  /// Returns XXH3-64 of encoded().
  std::uint64_t fingerprint() const;
  /// Returns the leaves depth-first, in key order.
  std::span<const LeafSpec> leaves() const;
  /// Returns the portable encoding, of which each schema has exactly one. The view is valid as long as any copy of this
  /// schema.
  ByteView encoded() const;
  /// Decodes untrusted bytes. Counts are bounded by the bytes that remain; depth, nodes and paths by the limits above.
  /// Throws CorruptMessage.
  static Schema decode(ByteView bytes);

  /// Returns the schema without the leaves for which `keep`, with one entry per leaf, is false. A dict loses the key,
  /// and remains even if it becomes empty. A list, tuple or record gets None in the leaf's place. The first kept alias
  /// of a dropped tensor becomes a tensor itself, which the others then alias. Throws InvalidArgument if the size
  /// differs.
  Schema select(std::span<const bool> keep) const;
  /// Returns, for each leaf of select(keep), the number of its leaf in this schema, or -1 for a None that replaces a
  /// dropped leaf. Throws as select() does.
  std::vector<int> selected_leaves(std::span<const bool> keep) const;

  /// Returns the same schema with every alias turned into a separate tensor.
  Schema without_aliases() const;

  struct Node;  ///< internal representation
  explicit Schema(Node root);
  const Node& root() const;

 private:
  struct State;
  explicit Schema(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

/// A Tree as its structure and its leaves. leaves[i] belongs to schema.leaves()[i].
struct FlatTree {
  Schema schema;
  std::vector<Leaf> leaves;
};

/// Flattens a tree. Tensors that share memory, shape, strides and dtype become aliases, whose leaves still hold the
/// tensor. If the structure equals `previous`, the result shares it, which is faster than building a new one. When
/// flattening many trees, pass the previous result's schema. Throws InvalidArgument for a tree beyond the limits above.
FlatTree flatten(const Tree& tree, const Schema& previous = {});
/// Rebuilds the tree. Aliases share their tensor. Throws InvalidArgument if the leaves do not fit the schema.
Tree unflatten(const FlatTree& flat);

}  // namespace levada
