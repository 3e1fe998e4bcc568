#include "levada/tree/tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "levada/base/error.h"
#include "levada/base/overloaded.h"
#include "levada/tensor/elements.h"
#include "levada/tree/path.h"
#include "levada/tree/schema_node.h"

namespace levada {
namespace {

bool has_keys(ContainerKind kind) {
  return kind == ContainerKind::dict || kind == ContainerKind::record;
}

std::string_view kind_name(ContainerKind kind) {
  switch (kind) {
    case ContainerKind::list: return "list";
    case ContainerKind::tuple: return "tuple";
    case ContainerKind::dict: return "dict";
    case ContainerKind::record: return "record";
  }
  return "container";
}

std::string key_name(const Key& key) {
  std::string name;
  append_key(name, key);
  return name;
}

void check(const Container& container) {
  const auto name = kind_name(container.kind);
  if (!has_keys(container.kind)) {
    if (!container.keys.empty()) throw InvalidArgument(fmt::format("a {} has positions, not keys", name));
    return;
  }
  if (container.keys.size() != container.children.size()) {
    throw InvalidArgument(
        fmt::format("a {} has {} keys for {} children", name, container.keys.size(), container.children.size()));
  }
  if (const auto* key = first_duplicate(container.keys)) {
    throw InvalidArgument(fmt::format("the key {} appears twice in a {}", key_name(*key), name));
  }
  if (container.kind != ContainerKind::record) return;
  for (const auto& key : container.keys) {
    if (!std::holds_alternative<std::string>(key)) {
      throw InvalidArgument(fmt::format("the field {} of a record is no name", key_name(key)));
    }
  }
}

std::string describe(const Leaf& leaf) {
  return std::visit(Overloaded{
                        [](None) -> std::string { return "None"; },
                        [](bool value) -> std::string { return value ? "true" : "false"; },
                        [](std::int64_t value) { return std::to_string(value); },
                        [](double value) { return fmt::format("{}", value); },
                        [](const std::string& text) { return fmt::format("\"{}\"", text); },
                        [](const Bytes& bytes) { return fmt::format("{} bytes", bytes.size()); },
                        [](const Tensor& t) { return t.dtype().name() + " " + t.shape().to_string(); },
                    },
                    leaf);
}

std::string describe(const Tree& tree) {
  if (tree.is_leaf()) return describe(tree.leaf());
  const auto& container = tree.container();
  const auto& type = container.type_name;
  return fmt::format("{}{}{} of {}", kind_name(container.kind), type.empty() ? "" : " ", type,
                     container.children.size());
}

bool same_leaf(const Leaf& a, const Leaf& b) {
  if (a.index() != b.index()) return false;
  if (const auto* tensor = std::get_if<Tensor>(&a)) return same_elements(*tensor, std::get<Tensor>(b));
  if (const auto* real = std::get_if<double>(&a)) {
    return std::bit_cast<std::uint64_t>(*real) == std::bit_cast<std::uint64_t>(std::get<double>(b));
  }
  return std::visit(
      [&b]<typename T>(const T& value) {
        if constexpr (std::is_same_v<T, Tensor>) return false;
        else return value == std::get<T>(b);
      },
      a);
}

const Tree* child_at(const Container& container, const PathStep& step) {
  if (step.is_position) {
    const auto position = static_cast<std::size_t>(*step.integer);
    if (has_keys(container.kind) || position >= container.children.size()) return nullptr;
    return &container.children[position];
  }
  if (!has_keys(container.kind)) return nullptr;
  const auto child_of = [&container](const Key& key) -> const Tree* {
    const auto found = std::find(container.keys.begin(), container.keys.end(), key);
    return found == container.keys.end() ? nullptr : &container.children[found - container.keys.begin()];
  };
  if (step.integer) {
    if (const auto* child = child_of(*step.integer)) return child;
  }
  return child_of(step.text);
}

struct Lookup {
  const Tree* node = nullptr;  // null if not found
  const Tree* last = nullptr;  // the last node reached
  std::string_view taken;      // the path to `last`
  bool malformed = false;
};

Lookup look_up(const Tree& root, std::string_view path) {
  PathReader reader(path);
  Lookup found{&root, &root, {}, false};
  while (!reader.done()) {
    found.last = found.node;
    found.taken = reader.taken();
    const auto step = reader.next();
    found.malformed = !step;
    found.node = step && !found.last->is_leaf() ? child_at(found.last->container(), *step) : nullptr;
    if (!found.node) break;
  }
  return found;
}

std::string what_is_there(const Tree& node) {
  if (node.is_leaf()) return fmt::format("is a leaf ({})", describe(node));
  const auto& container = node.container();
  const auto count = container.children.size();
  if (!has_keys(container.kind)) return fmt::format("is a {} of {}", kind_name(container.kind), count);
  constexpr std::size_t shown = 20;
  std::string keys;
  for (std::size_t i = 0; i < std::min(count, shown); ++i) keys += (i ? ", " : "") + key_name(container.keys[i]);
  if (count > shown) keys += fmt::format(" and {} more", count - shown);
  return count == 0 ? "is empty" : "has " + keys;
}

void print(const Tree& tree, const std::string& name, std::size_t indent, std::string& out) {
  out.append(indent, ' ');
  if (!name.empty()) out += name + ": ";
  out += describe(tree) + "\n";
  if (tree.is_leaf()) return;
  const auto& container = tree.container();
  for (std::size_t i = 0; i < container.children.size(); ++i) {
    const auto child = has_keys(container.kind) ? key_name(container.keys[i]) : fmt::format("[{}]", i);
    print(container.children[i], child, indent + 2, out);
  }
}

}  // namespace

const Key* first_duplicate(std::span<const Key> keys) {
  constexpr std::size_t few = 16;
  if (keys.size() <= few) {
    for (auto key = keys.begin(); key != keys.end(); ++key) {
      if (std::find(keys.begin(), key, *key) != key) return &*key;
    }
    return nullptr;
  }
  std::unordered_set<Key> seen;
  for (const auto& key : keys) {
    if (!seen.insert(key).second) return &key;
  }
  return nullptr;
}

Tree::Tree(Container container) : node_(std::move(container)) {
  check(std::get<Container>(node_));
}

Tree Tree::list(std::vector<Tree> children) {
  return Tree(Container{ContainerKind::list, {}, {}, std::move(children), {}});
}

Tree Tree::tuple(std::vector<Tree> children) {
  return Tree(Container{ContainerKind::tuple, {}, {}, std::move(children), {}});
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): what it holds is moved
Tree Tree::dict(std::vector<std::pair<Key, Tree>> items) {
  Container container;
  container.keys.reserve(items.size());
  container.children.reserve(items.size());
  for (auto& [key, child] : items) {
    container.keys.push_back(std::move(key));
    container.children.push_back(std::move(child));
  }
  return Tree(std::move(container));
}

const Leaf& Tree::leaf() const {
  if (const auto* leaf = std::get_if<Leaf>(&node_)) return *leaf;
  throw InvalidArgument(fmt::format("a {} cannot be accessed as a leaf", describe(*this)));
}

const Container& Tree::container() const {
  if (const auto* container = std::get_if<Container>(&node_)) return *container;
  throw InvalidArgument(fmt::format("a leaf ({}) cannot be accessed as a container", describe(*this)));
}

const Tree& Tree::at(std::string_view path) const {
  const auto found = look_up(*this, path);
  if (found.node) return *found.node;
  if (found.malformed) {
    throw InvalidArgument(fmt::format("'{}' is not a path; write one as tokens or meta.ids[2]", path));
  }
  const auto where = found.taken.empty() ? std::string("the tree") : fmt::format("'{}'", found.taken);
  throw InvalidArgument(fmt::format("there is no '{}': {} {}", path, where, what_is_there(*found.last)));
}

bool Tree::contains(std::string_view path) const {
  return look_up(*this, path).node != nullptr;
}

const Tensor& Tree::tensor(std::string_view path) const {
  const auto& node = at(path);
  if (node.is_leaf()) {
    if (const auto* tensor = std::get_if<Tensor>(&node.leaf())) return *tensor;
  }
  throw InvalidArgument(fmt::format("'{}' is not a tensor but {}", path, describe(node)));
}

bool Tree::operator==(const Tree& other) const {
  if (is_leaf() != other.is_leaf()) return false;
  if (is_leaf()) return same_leaf(leaf(), other.leaf());
  const auto& a = container();
  const auto& b = other.container();
  return a.kind == b.kind && a.type_name == b.type_name && a.keys == b.keys && a.state == b.state &&
         a.children == b.children;
}

std::string Tree::to_string() const {
  std::string out;
  print(*this, {}, 0, out);
  return out;
}

}  // namespace levada
