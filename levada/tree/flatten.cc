#include <fmt/format.h>

#include <unordered_map>

#include "levada/base/error.h"
#include "levada/tree/path.h"
#include "levada/tree/schema_node.h"

namespace levada {
namespace {

using Node = Schema::Node;

static_assert(std::is_same_v<std::variant_alternative_t<static_cast<std::size_t>(LeafKind::tensor), Leaf>, Tensor>);
static_assert(std::variant_size_v<Leaf> == static_cast<std::size_t>(LeafKind::tensor) + 1);

LeafKind kind_of(const Leaf& leaf) {
  return static_cast<LeafKind>(leaf.index());
}

bool are_one(const TensorView& a, const TensorView& b) {
  return a.data() == b.data() && a.byte_count() > 0 && a.dtype() == b.dtype() && a.device() == b.device() &&
         a.shape() == b.shape() && a.strides() == b.strides();
}

// Returns for each leaf the earlier tensor that it aliases, or -1.
std::vector<int> find_aliases(const std::vector<Leaf>& leaves) {
  std::vector<int> alias_of(leaves.size(), -1);
  constexpr std::size_t few = 32;
  std::unordered_multimap<const std::byte*, int> by_address;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const auto* tensor = std::get_if<Tensor>(&leaves[i]);
    if (!tensor) continue;
    const auto try_one = [&](std::size_t j) {
      const auto* other = std::get_if<Tensor>(&leaves[j]);
      if (!other || alias_of[j] >= 0 || !are_one(tensor->view(), other->view())) return false;
      alias_of[i] = static_cast<int>(j);
      return true;
    };
    if (leaves.size() <= few) {
      for (std::size_t j = 0; j < i && !try_one(j);) ++j;
      continue;
    }
    auto [begin, end] = by_address.equal_range(tensor->view().data());
    while (begin != end && !try_one(static_cast<std::size_t>(begin->second))) ++begin;
    if (alias_of[i] < 0) by_address.emplace(tensor->view().data(), static_cast<int>(i));
  }
  return alias_of;
}

// Returns whether `tree` has the structure of `node`, ignoring aliases. Appends its leaves as it compares.
bool collect_if_same(const Tree& tree, const Node& node, std::vector<Leaf>& leaves) {
  if (tree.is_leaf() != node.is_leaf()) return false;
  if (tree.is_leaf()) {
    const auto& leaf = tree.leaf();
    if (kind_of(leaf) != node.leaf) return false;
    const auto* tensor = std::get_if<Tensor>(&leaf);
    if (tensor && (tensor->dtype() != node.dtype || tensor->shape().rank() != node.rank)) return false;
    leaves.push_back(leaf);
    return true;
  }
  const auto& container = tree.container();
  if (container.kind != node.kind || container.children.size() != node.children.size() || container.keys != node.keys ||
      container.type_name != node.type_name || container.state != node.state) {
    return false;
  }
  for (std::size_t i = 0; i < node.children.size(); ++i) {
    if (!collect_if_same(container.children[i], node.children[i], leaves)) return false;
  }
  return true;
}

bool has_aliases(const Schema& schema, std::span<const int> alias_of) {
  const auto specs = schema.leaves();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].alias_of != alias_of[i]) return false;
  }
  return true;
}

// Builds the nodes of a tree and collects its leaves. Aliases are filled in afterwards.
class Flattener {
 public:
  explicit Flattener(const Tree& tree) : root_(node(tree, 0)) {
    alias_of_ = find_aliases(leaves_);
    set_aliases(root_);
  }
  FlatTree take() && { return {Schema(std::move(root_)), std::move(leaves_)}; }

 private:
  Node node(const Tree& tree, int depth) {
    if (++nodes_ > max_tree_nodes) {
      throw InvalidArgument(fmt::format("a tree has more than {} nodes; join its leaves into tensors", max_tree_nodes));
    }
    if (tree.is_leaf()) return leaf(tree.leaf());
    if (depth == max_tree_depth) {
      throw InvalidArgument(fmt::format("a tree is deeper than {} containers, at '{}'", max_tree_depth, path_));
    }
    return container(tree.container(), depth);
  }

  Node leaf(const Leaf& leaf) {
    Node made;
    made.leaf = kind_of(leaf);
    if (const auto* tensor = std::get_if<Tensor>(&leaf)) {
      made.dtype = tensor->dtype();
      made.rank = static_cast<std::uint8_t>(tensor->shape().rank());
      if (!made.dtype.is_known()) {
        throw InvalidArgument(fmt::format("'{}' is a tensor of unknown type {}", path_, made.dtype.name()));
      }
    }
    leaves_.push_back(leaf);
    return made;
  }

  Node container(const Container& container, int depth) {
    Node made;
    made.kind = container.kind;
    made.type_name = container.type_name;
    made.keys = container.keys;
    made.state = container.state;
    made.children.reserve(container.children.size());
    const auto before = path_.size();
    for (std::size_t i = 0; i < container.children.size(); ++i) {
      if (made.has_keys()) append_key(path_, made.keys[i]);
      else append_position(path_, i);
      made.children.push_back(node(container.children[i], depth + 1));
      path_.resize(before);
    }
    return made;
  }

  void set_aliases(Node& node) {
    if (node.is_leaf()) node.alias_of = alias_of_[next_leaf_++];
    for (auto& child : node.children) set_aliases(child);
  }

  std::size_t nodes_ = 0;
  std::size_t next_leaf_ = 0;
  std::string path_;
  std::vector<Leaf> leaves_;
  std::vector<int> alias_of_;
  Node root_;
};

void check_leaf(const LeafSpec& spec, const Leaf& leaf) {
  const auto* tensor = std::get_if<Tensor>(&leaf);
  if (kind_of(leaf) != spec.kind ||
      (tensor && (tensor->dtype() != spec.dtype || tensor->shape().rank() != spec.rank))) {
    throw InvalidArgument(fmt::format("the leaf '{}' does not fit its schema", spec.path));
  }
}

Tree build(const Node& node, const std::vector<Leaf>& leaves, std::size_t& next) {
  if (node.is_leaf()) {
    const auto number = next++;
    return Tree(leaves[node.alias_of >= 0 ? static_cast<std::size_t>(node.alias_of) : number]);
  }
  Container container{*node.kind, node.type_name, node.keys, {}, node.state};
  container.children.reserve(node.children.size());
  for (const auto& child : node.children) container.children.push_back(build(child, leaves, next));
  return Tree(std::move(container));
}

}  // namespace

FlatTree flatten(const Tree& tree, const Schema& previous) {
  FlatTree flat{previous, {}};
  flat.leaves.reserve(previous.leaves().size());
  if (collect_if_same(tree, previous.root(), flat.leaves) && has_aliases(previous, find_aliases(flat.leaves))) {
    return flat;
  }
  return Flattener(tree).take();
}

Tree unflatten(const FlatTree& flat) {
  const auto specs = flat.schema.leaves();
  if (specs.size() != flat.leaves.size()) {
    throw InvalidArgument(fmt::format("{} leaves for a schema of {}", flat.leaves.size(), specs.size()));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) check_leaf(specs[i], flat.leaves[i]);
  std::size_t next = 0;
  return build(flat.schema.root(), flat.leaves, next);
}

}  // namespace levada
