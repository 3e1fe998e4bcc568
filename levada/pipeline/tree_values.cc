#include "levada/pipeline/tree_values.h"

#include <fmt/format.h>

#include "levada/base/error.h"
#include "levada/pipeline/tree_packing.h"

namespace levada::pipeline {
namespace {

[[noreturn]] void throw_foreign() {
  throw InvalidArgument("an object of another language came to a pipeline of trees");
}

Tree& tree_in(Item& item) {
  if (auto* tree = std::get_if<Tree>(&item)) return *tree;
  throw_foreign();
}

std::vector<Tree> trees_of(std::vector<Item> items) {
  std::vector<Tree> trees;
  trees.reserve(items.size());
  for (auto& item : items) trees.push_back(std::move(tree_in(item)));
  return trees;
}

}  // namespace

Item TreeValues::list_of(std::vector<Item> items) const {
  return Tree::list(trees_of(std::move(items)));
}

Item TreeValues::tuple_of(std::vector<Item> items) const {
  return Tree::tuple(trees_of(std::move(items)));
}

std::vector<Item> TreeValues::elements(Item item) const {
  const auto& tree = tree_in(item);
  const bool is_batch = !tree.is_leaf() &&
                        (tree.container().kind == ContainerKind::list || tree.container().kind == ContainerKind::tuple);
  if (!is_batch) throw InvalidArgument(fmt::format("this is no batch, but\n{}", tree.to_string()));
  const auto& children = tree.container().children;
  return {children.begin(), children.end()};
}

Arrays TreeValues::arrays_of(const Item& item) const {
  const auto tensor_in = [](const Tree& tree, const std::string& name) {
    if (const auto* tensor = tree.is_leaf() ? std::get_if<Tensor>(&tree.leaf()) : nullptr) return *tensor;
    throw InvalidArgument(fmt::format("{} is no array", name.empty() ? "the item" : name));
  };
  const auto* tree = std::get_if<Tree>(&item);
  if (tree == nullptr) throw_foreign();
  if (tree->is_leaf() || tree->container().kind != ContainerKind::dict) return {.fields = {{"", tensor_in(*tree, "")}}};
  Arrays arrays;
  const auto& container = tree->container();
  for (std::size_t i = 0; i < container.keys.size(); ++i) {
    const auto* name = std::get_if<std::string>(&container.keys[i]);
    if (name == nullptr) throw InvalidArgument("a field has no name but a number");
    arrays.fields.emplace_back(*name, tensor_in(container.children[i], *name));
  }
  return arrays;
}

Item TreeValues::dict_of(Arrays arrays) const {
  std::vector<std::pair<Key, Tree>> fields;
  for (auto& [name, tensor] : arrays.fields) fields.emplace_back(std::move(name), std::move(tensor));
  return Tree::dict(std::move(fields));
}

Values::Packed TreeValues::pack(std::span<const Item> items) const {
  return pack_trees(items);
}

std::vector<Item> TreeValues::unpack(ByteView head, std::span<const std::span<std::byte>> buffers,
                                     std::shared_ptr<const void> hold) const {
  return unpack_trees(head, buffers, hold);
}

}  // namespace levada::pipeline
