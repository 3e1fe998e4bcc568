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

/// Limits on every tree, so that a decoder can reject input that would exhaust memory.
inline constexpr int max_tree_depth = 64;                            ///< nesting of containers
inline constexpr std::size_t max_tree_nodes = std::size_t{1} << 18;  ///< leaves and containers
inline constexpr std::size_t max_path_bytes = std::size_t{1} << 26;  ///< all leaves' paths together

/// Structure without data: containers, class names, keys, kinds, dtypes, ranks, aliases; no extents, no values.
/// Immutable; copies share. Equal fingerprints mean equal schemas.
class Schema {
 public:
  /// The schema of a single None.
  Schema();

  /// Returns XXH3-64 of encoded().
  std::uint64_t fingerprint() const;
  /// Returns the leaves depth first, in the order of keys.
  std::span<const LeafSpec> leaves() const;
  /// Returns portable bytes, exactly one encoding per schema; the view lives as long as a copy of this schema.
  ByteView encoded() const;
  /// Reads untrusted bytes: counts are bounded by the bytes that remain, and depth, nodes and paths by the limits
  /// above. Throws CorruptMessage.
  static Schema decode(ByteView bytes);

  /// Returns the schema without the leaves for which `keep` (one entry per leaf) is false: a dict loses the key and
  /// stays even if it becomes empty; a list, tuple or record gets None in its place. The first kept alias of a dropped
  /// leaf takes the leaf's place. Throws InvalidArgument if the size differs.
  Schema select(std::span<const bool> keep) const;
  /// Returns, for each leaf of select(keep), the number of its leaf in this schema, or -1 for a None that replaces a
  /// dropped leaf. Throws as select() does.
  std::vector<int> selected_leaves(std::span<const bool> keep) const;

  /// Returns the same schema with every alias as a tensor of its own.
  Schema without_aliases() const;

  struct Node;  ///< internal representation
  explicit Schema(Node root);
  const Node& root() const;

 private:
  struct State;
  explicit Schema(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

/// A Tree as structure and leaves; leaves[i] belongs to schema.leaves()[i].
struct FlatTree {
  Schema schema;
  std::vector<Leaf> leaves;
};

/// Flattens a tree. Tensors that share memory, shape, strides and dtype become aliases (their leaves still hold the
/// tensor). If the structure equals that of `previous`, the result shares it, which is faster than building a new one:
/// pass the previous result when flattening tree after tree. Throws InvalidArgument for a tree beyond the limits above.
FlatTree flatten(const Tree& tree, const Schema& previous = {});
/// Rebuilds the tree; aliases share their tensor. Throws InvalidArgument if the leaves do not fit the schema.
Tree unflatten(const FlatTree& flat);

}  // namespace levada
