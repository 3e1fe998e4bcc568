#include <fmt/format.h>

#include "levada/base/error.h"
#include "levada/tree/schema_node.h"

namespace levada {
namespace {

using Node = Schema::Node;

class Selector {
 public:
  Selector(const Schema& schema, std::span<const bool> keep) : keep_(keep), first_kept_(keep.size(), -1) {
    if (keep.size() != schema.leaves().size()) {
      throw InvalidArgument(
          fmt::format("a choice among {} leaves for a schema of {}", keep.size(), schema.leaves().size()));
    }
    root_ = select(schema.root()).value_or(Node{});
    if (leaves_.empty() && root_.is_leaf()) leaves_.push_back(-1);
  }

  Node take_root() && { return std::move(root_); }
  std::vector<int> take_leaves() && { return std::move(leaves_); }

 private:
  std::optional<Node> select(const Node& node) { return node.is_leaf() ? leaf(node) : container(node); }

  std::optional<Node> leaf(const Node& node) {
    const int number = next_++;
    if (!keep_[number]) return std::nullopt;
    auto kept = node;
    if (node.leaf == LeafKind::tensor) {
      auto& first = first_kept_[node.alias_of >= 0 ? node.alias_of : number];
      kept.alias_of = first;
      if (first < 0) first = static_cast<int>(leaves_.size());
    }
    leaves_.push_back(number);
    return kept;
  }

  Node container(const Node& node) {
    Node kept;
    kept.kind = node.kind;
    kept.type_name = node.type_name;
    kept.state = node.state;
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      auto child = select(node.children[i]);
      if (!child && node.kind == ContainerKind::dict) continue;
      if (!child) leaves_.push_back(-1);
      if (node.has_keys()) kept.keys.push_back(node.keys[i]);
      kept.children.push_back(child ? std::move(*child) : Node{});
    }
    return kept;
  }

  std::span<const bool> keep_;
  std::vector<int> first_kept_;  // new number of each tensor, by its old number
  std::vector<int> leaves_;
  int next_ = 0;
  Node root_;
};

Node with_own_tensors(const Node& node) {
  Node own = node;
  own.alias_of = -1;
  for (Node& child : own.children) child = with_own_tensors(child);
  return own;
}

}  // namespace

Schema Schema::select(std::span<const bool> keep) const {
  return Schema(Selector(*this, keep).take_root());
}

std::vector<int> Schema::selected_leaves(std::span<const bool> keep) const {
  return Selector(*this, keep).take_leaves();
}

Schema Schema::without_aliases() const {
  return Schema(with_own_tensors(root()));
}

}  // namespace levada
