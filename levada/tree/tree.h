// A batch or a sample: nested containers whose leaves are tensors or plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "levada/tensor/tensor.h"

namespace levada {

struct None {
  bool operator==(const None&) const = default;
};

/// A leaf: a tensor or a plain value.
using Leaf = std::variant<None, bool, std::int64_t, double, std::string, Bytes, Tensor>;

enum class ContainerKind : std::uint8_t {
  list = 1,    ///< children by position
  tuple = 2,   ///< children by position
  dict = 3,    ///< children by key, order kept
  record = 4,  ///< fields by name and a class's name: named tuples, data classes, registered types
};

/// A dict's key. A record's are all strings.
using Key = std::variant<std::string, std::int64_t>;

class Tree;

/// A container's children and what it must come back as. `type_name` ("module:qualified.name") is empty for the
/// plain kinds; `state` is whatever else a registered type needs to be made again.
struct Container {
  ContainerKind kind = ContainerKind::dict;
  std::string type_name;
  std::vector<Key> keys;  ///< one a child for dict and record; empty for list and tuple
  std::vector<Tree> children;
  Bytes state;
};

/// A leaf or a container. A value; copies share tensors' memory, not their own structure.
class Tree {
 public:
  /// None.
  Tree() = default;
  Tree(Leaf leaf) : node_(std::move(leaf)) {}
  Tree(None) {}
  Tree(Tensor tensor) : node_(Leaf(std::move(tensor))) {}
  Tree(std::string text) : node_(Leaf(std::move(text))) {}
  Tree(Bytes bytes) : node_(Leaf(std::move(bytes))) {}
  Tree(const char* text) : node_(Leaf(std::string(text))) {}
  Tree(std::int64_t value) : node_(Leaf(value)) {}
  Tree(int value) : node_(Leaf(std::int64_t{value})) {}
  Tree(double value) : node_(Leaf(value)) {}
  Tree(bool value) : node_(Leaf(value)) {}
  /// Throws InvalidArgument unless keys and children fit the kind and no key stands twice.
  Tree(Container container);

  static Tree list(std::vector<Tree> children);
  static Tree tuple(std::vector<Tree> children);
  static Tree dict(std::vector<std::pair<Key, Tree>> items);

  bool is_leaf() const { return std::holds_alternative<Leaf>(node_); }
  /// Throws InvalidArgument where this is the other thing.
  const Leaf& leaf() const;
  const Container& container() const;

  /// The node at `path`: "tokens", "meta.ids[2]" (a name or integer key after a dot or at the start; a position in
  /// brackets; the empty path is this node). A key with any of . [ ] " \ in it, an empty one, and a string that looks
  /// like an integer stand in double quotes, " and \ behind a backslash: meta."a.b". Throws InvalidArgument that lists
  /// what is there.
  const Tree& at(std::string_view path) const;
  bool contains(std::string_view path) const;
  /// at(path), which must be a tensor.
  const Tensor& tensor(std::string_view path) const;

  /// Same structure, names, dtypes, shapes, values and bits. NaNs with the same bits are equal.
  bool operator==(const Tree& other) const;
  /// For people: one line a node, tensors as dtype and shape.
  std::string to_string() const;

 private:
  std::variant<Leaf, Container> node_;
};

}  // namespace levada
