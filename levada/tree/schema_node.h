// The internal representation of a Schema: only for this module's sources.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "levada/tree/schema.h"

namespace levada {

struct Schema::Node {
  // A leaf. `dtype` and `rank` describe a tensor. An alias names an earlier tensor that is not an alias, and repeats
  // its dtype and rank.
  LeafKind leaf = LeafKind::none;
  DType dtype;
  std::uint8_t rank = 0;
  int alias_of = -1;

  // A container, if `kind` is set.
  std::optional<ContainerKind> kind;
  std::string type_name;
  std::vector<Key> keys;
  std::vector<Node> children;
  Bytes state;

  bool is_leaf() const { return !kind.has_value(); }
  bool has_keys() const { return kind == ContainerKind::dict || kind == ContainerKind::record; }
};

/// Returns the first duplicate key, or null.
const Key* first_duplicate(std::span<const Key> keys);

}  // namespace levada
