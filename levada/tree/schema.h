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

/// What no tree goes beyond, so that a decoder can refuse what would exhaust memory.
inline constexpr int max_tree_depth = 64;                            ///< containers in one another
inline constexpr std::size_t max_tree_nodes = std::size_t{1} << 18;  ///< leaves and containers
inline constexpr std::size_t max_path_bytes = std::size_t{1} << 26;  ///< of all leaves' paths together

/// Structure without data: containers, class names, keys, kinds, dtypes, ranks, aliases; no extents, no values.
/// Immutable; copies share. Equal fingerprints mean equal schemas.
class Schema {
 public:
  /// Of a lone None.
  Schema();

  /// XXH3-64 of encoded().
  std::uint64_t fingerprint() const;
  /// Depth first, in the order of keys.
  std::span<const LeafSpec> leaves() const;
  /// Portable bytes, one encoding a schema; the view lives as long as a copy of this schema.
  ByteView encoded() const;
  /// Reads bytes that may lie: counts bounded by the bytes there, depth, nodes and paths by the limits above. Throws
  /// CorruptMessage.
  static Schema decode(ByteView bytes);

  /// The schema without the leaves for which `keep` (one entry a leaf) is false: a dict loses the key, a dict left
  /// empty by that stays; list, tuple and record get None in its place. An alias of a leaf not kept takes its
  /// place. Throws InvalidArgument if the size differs.
  Schema select(std::span<const bool> keep) const;
  /// For each leaf of select(keep) the number of the leaf here that it is, or -1 for a None that stands in for one not
  /// kept. Throws as select() does.
  std::vector<int> selected_leaves(std::span<const bool> keep) const;

  /// The same with every alias as a tensor of its own.
  Schema without_aliases() const;

  struct Node;  ///< how it is kept; known to this module alone
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

/// Takes a tree apart. Tensors that share memory, shape, strides and dtype become aliases (their leaves hold the tensor
/// all the same). Where the structure is that of `previous`, the result shares it, which spares making it anew: what a
/// caller does that flattens tree after tree. Throws InvalidArgument for a tree beyond the limits above.
FlatTree flatten(const Tree& tree, const Schema& previous = {});
/// Puts it together again; aliases share their tensor. Throws InvalidArgument if the leaves do not fit the schema.
Tree unflatten(const FlatTree& flat);

}  // namespace levada
