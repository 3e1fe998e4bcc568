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
  record = 4,  ///< fields by name, and a class name: named tuples, data classes, registered types
};

/// A key of a dict or record. A record's keys are all strings.
using Key = std::variant<std::string, std::int64_t>;

class Tree;

/// A container's children and the type that it is restored to. `type_name` ("module:qualified.name") is empty for plain
/// containers. `state` is anything else that is needed to rebuild a registered type.
struct Container {
  ContainerKind kind = ContainerKind::dict;
  std::string type_name;
  std::vector<Key> keys;  ///< one per child for dict and record; empty for list and tuple
  std::vector<Tree> children;
  Bytes state;
};

/// A leaf or a container. A value; copies share tensors' memory, but not their structure.
class Tree {
 public:
  /// Constructs a None.
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
  /// Throws InvalidArgument if keys or children do not fit the kind, or a key is duplicated.
  Tree(Container container);

  static Tree list(std::vector<Tree> children);
  static Tree tuple(std::vector<Tree> children);
  static Tree dict(std::vector<std::pair<Key, Tree>> items);

  bool is_leaf() const { return std::holds_alternative<Leaf>(node_); }
  /// Throw InvalidArgument if this node is of the other kind.
  const Leaf& leaf() const;
  const Container& container() const;

  /// Returns the node at `path`, such as "tokens" or "meta.ids[2]". A step is a name or an integer key, after a dot or
  /// at the start, or a position in brackets. The empty path is this node. A key that is empty, contains . [ ] " or \,
  /// or is a string that looks like an integer is written in double quotes, with \ before " and \: meta."a.b". Throws
  /// InvalidArgument that describes the deepest node found.
  const Tree& at(std::string_view path) const;
  bool contains(std::string_view path) const;
  /// Returns at(path), which must be a tensor.
  const Tensor& tensor(std::string_view path) const;

  /// Compares structure, names, dtypes, shapes, values and bits. NaNs with the same bits are equal.
  bool operator==(const Tree& other) const;
  /// Returns text for people: one line per node, tensors as dtype and shape.
  std::string to_string() const;

 private:
  std::variant<Leaf, Container> node_;
};

}  // namespace levada
