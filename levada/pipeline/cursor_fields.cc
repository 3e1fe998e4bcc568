#include "levada/pipeline/cursor_fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/tree/codec.h"

namespace levada::pipeline {
namespace {

[[noreturn]] void refuse_state(std::string_view stage, std::string_view what) {
  throw InvalidArgument(fmt::format("the state does not fit stage {}: {}", stage, what));
}

template <typename T>
const T* leaf_as(const Tree& tree) {
  return tree.is_leaf() ? std::get_if<T>(&tree.leaf()) : nullptr;
}

}  // namespace

Bytes pack_cursor(const Cursor& cursor) {
  return encode_tree(cursor);
}

Cursor unpack_cursor(ByteView bytes) {
  SchemaCache schemas;
  const auto memory = std::make_shared<const Bytes>(bytes.begin(), bytes.end());
  return unflatten(read_message(*memory, memory, schemas).content);
}

CursorFields::CursorFields(const Tree& fields, std::string_view stage) : fields_(fields), stage_(stage) {
  if (fields.is_leaf() || fields.container().kind != ContainerKind::dict) refuse("a dict of its own is not there");
  const auto* name = leaf_as<std::string>(at("stage"));
  if (name == nullptr) refuse("it names no stage");
  if (*name != stage) refuse(fmt::format("it is of a pipeline that has {} there", *name));
}

const Tree* CursorFields::find(std::string_view name) const {
  const auto& container = fields_.container();
  for (std::size_t i = 0; i < container.keys.size(); ++i) {
    const auto* key = std::get_if<std::string>(&container.keys[i]);
    if (key != nullptr && *key == name) return &container.children[i];
  }
  return nullptr;
}

const Tree& CursorFields::at(std::string_view name) const {
  if (const auto* found = find(name)) return *found;
  refuse(fmt::format("it has no {}", name));
}

std::int64_t CursorFields::integer(std::string_view name) const {
  if (const auto* value = leaf_as<std::int64_t>(at(name))) return *value;
  refuse(fmt::format("its {} is no integer", name));
}

std::int64_t CursorFields::count(std::string_view name) const {
  const auto value = integer(name);
  if (value < 0 || value > max_count) refuse(fmt::format("its {} is {}", name, value));
  return value;
}

const Bytes& CursorFields::bytes(std::string_view name) const {
  if (const auto* value = leaf_as<Bytes>(at(name))) return *value;
  refuse(fmt::format("its {} is not bytes", name));
}

void CursorFields::refuse(std::string_view what) const {
  refuse_state(stage_, what);
}

const std::vector<Tree>& list_in_cursor(const Tree& tree, std::string_view stage) {
  if (tree.is_leaf() || tree.container().kind != ContainerKind::list) refuse_state(stage, "it is no list");
  return tree.container().children;
}

}  // namespace levada::pipeline
