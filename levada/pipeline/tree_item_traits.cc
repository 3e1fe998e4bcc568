#include "levada/pipeline/tree_item_traits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/base/overloaded.h"
#include "levada/tree/schema.h"

namespace levada::pipeline {
namespace {

// clang-format off
// Items as bytes: a count, then each item, depth first: a byte that says what it is, and
//   integer, real     8 bytes
//   text, bytes       a length, then the bytes
//   tensor            type (4 bytes), rank (1), extents; then a small one's elements; another's are the next buffer
//   list, tuple       a count, then the children
//   dict, record      a count, the keys, then the children; types with a class: its name and state before that
// Counts and lengths have 7 bits a byte, the lowest first; the last byte has the highest bit clear.
// clang-format on

enum class NodeKind : std::uint8_t {
  none = 0,
  no = 1,
  yes = 2,
  integer = 3,
  real = 4,
  text = 5,
  bytes = 6,
  small_tensor = 7,
  tensor = 8,
  list = 9,
  tuple = 10,
  dict = 11,
  record = 12,
  integer_key = 13,
  text_key = 14,
  of_class = 15,
};

/// Tensors up to this many bytes are stored inline.
constexpr std::size_t small_tensor_bytes = 512;

/// A byte buffer that grows by doubling, and is zeroed only when it grows.
class HeadWriter {
 public:
  void put(NodeKind kind) {
    *room(1) = static_cast<std::byte>(kind);
    at_ += 1;
  }
  template <typename T>
  void put_plain(NodeKind kind, T value) {
    auto* to = room(1 + sizeof(T));
    *to = static_cast<std::byte>(kind);
    std::memcpy(to + 1, &value, sizeof(T));
    at_ += 1 + sizeof(T);
  }
  void put_byte(std::uint8_t value) {
    *room(1) = static_cast<std::byte>(value);
    at_ += 1;
  }
  void put_number(std::uint64_t value) {
    for (; value >= 128; value >>= 7) put_byte(static_cast<std::uint8_t>(value | 128));
    put_byte(static_cast<std::uint8_t>(value));
  }
  void put_sized(ByteView bytes) {
    put_number(bytes.size());
    if (!bytes.empty()) std::memcpy(room(bytes.size()), bytes.data(), bytes.size());
    at_ += bytes.size();
  }
  /// Appends space that the caller must fill immediately.
  std::byte* extend(std::size_t bytes) {
    auto* to = room(bytes);
    at_ += bytes;
    return to;
  }
  Bytes take() && {
    bytes_.resize(at_);
    return std::move(bytes_);
  }

 private:
  std::byte* room(std::size_t bytes) {
    if (bytes_.size() - at_ < bytes) bytes_.resize(std::max({bytes_.size() * 2, at_ + bytes, std::size_t{1024}}));
    return bytes_.data() + at_;
  }

  Bytes bytes_;
  std::size_t at_ = 0;
};

[[noreturn]] void throw_language_object() {
  throw InvalidArgument("a pipeline of trees received an object of another language");
}

class TreePacker {
 public:
  ItemTraits::Packed pack(std::span<const Item> items) {
    out_.put_number(items.size());
    for (const auto& item : items) {
      const auto* tree = std::get_if<Tree>(&item);
      if (tree == nullptr) throw_language_object();
      put(*tree, 0);
    }
    ItemTraits::Packed packed{.head = std::move(out_).take()};
    for (const auto& tensor : tensors_) packed.buffers.push_back(tensor.bytes());
    if (!tensors_.empty()) packed.hold = std::make_shared<std::vector<Tensor>>(std::move(tensors_));
    return packed;
  }

 private:
  void put(const Tree& tree, int depth) {
    if (tree.is_leaf()) return put(tree.leaf());
    if (depth == max_tree_depth) {
      throw InvalidArgument(fmt::format("an item has more than {} nested containers", max_tree_depth));
    }
    put(tree.container(), depth);
  }

  void put(const Leaf& leaf) {
    std::visit(Overloaded{[&](None) { out_.put(NodeKind::none); },
                          [&](bool value) { out_.put(value ? NodeKind::yes : NodeKind::no); },
                          [&](std::int64_t value) { out_.put_plain(NodeKind::integer, value); },
                          [&](double value) { out_.put_plain(NodeKind::real, value); },
                          [&](const std::string& text) {
                            out_.put(NodeKind::text);
                            out_.put_sized(as_bytes(text));
                          },
                          [&](const Bytes& bytes) {
                            out_.put(NodeKind::bytes);
                            out_.put_sized(bytes);
                          },
                          [&](const Tensor& tensor) { put(tensor); }},
               leaf);
  }

  void put(const Tensor& tensor) {
    const auto& view = tensor.view();
    const auto bytes = view.byte_count();
    if (!view.device().is_cpu() || !view.dtype().is_known()) {
      throw InvalidArgument(fmt::format("a tensor {} {} cannot be sent to another process; copy it to the CPU first",
                                        view.dtype().name(), view.shape().to_string()));
    }
    const bool small = bytes <= small_tensor_bytes;
    out_.put_plain(small ? NodeKind::small_tensor : NodeKind::tensor, view.dtype());
    out_.put_byte(static_cast<std::uint8_t>(view.shape().rank()));
    for (const auto extent : view.shape()) out_.put_number(static_cast<std::uint64_t>(extent));
    if (!small) {
      tensors_.push_back(view.is_contiguous() ? tensor : Tensor::copy_of(view));
    } else if (bytes > 0) {
      copy_elements(view, out_.extend(bytes));
    }
  }

  void put(const Container& container, int depth) {
    if (!container.type_name.empty() || !container.state.empty()) {
      out_.put(NodeKind::of_class);
      out_.put_sized(as_bytes(container.type_name));
      out_.put_sized(container.state);
    }
    switch (container.kind) {
      case ContainerKind::list: out_.put(NodeKind::list); break;
      case ContainerKind::tuple: out_.put(NodeKind::tuple); break;
      case ContainerKind::dict: out_.put(NodeKind::dict); break;
      case ContainerKind::record: out_.put(NodeKind::record); break;
    }
    out_.put_number(container.children.size());
    for (const auto& key : container.keys) put(key);
    for (const auto& child : container.children) put(child, depth + 1);
  }

  void put(const Key& key) {
    if (const auto* number = std::get_if<std::int64_t>(&key)) return out_.put_plain(NodeKind::integer_key, *number);
    out_.put(NodeKind::text_key);
    out_.put_sized(as_bytes(std::get<std::string>(key)));
  }

  HeadWriter out_;
  std::vector<Tensor> tensors_;
};

/// Reads HeadWriter's output from untrusted bytes.
class HeadReader {
 public:
  explicit HeadReader(ByteView bytes) : bytes_(bytes) {}

  ByteView take(std::uint64_t count) {
    if (count > bytes_.size() - at_) fail(fmt::format("{} bytes expected, {} left", count, bytes_.size() - at_));
    const auto taken = bytes_.subspan(at_, count);
    at_ += count;
    return taken;
  }
  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  NodeKind kind() { return static_cast<NodeKind>(get<std::uint8_t>()); }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      const auto byte = get<std::uint8_t>();
      value |= std::uint64_t{byte & 127u} << shift;
      if (byte < 128) return value;
    }
    fail("an integer of more than 9 bytes");
  }
  ByteView sized() { return take(number()); }
  /// Reads a count of elements of at least one byte each.
  std::size_t count() {
    const auto count = number();
    if (count > bytes_.size() - at_) fail(fmt::format("a count of {}, with {} bytes left", count, bytes_.size() - at_));
    return count;
  }
  void expect_end() const {
    if (at_ != bytes_.size()) fail(fmt::format("{} bytes too many", bytes_.size() - at_));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw CorruptMessage(at_, fmt::format("corrupt items at byte {}: {}", at_, what));
  }

 private:
  ByteView bytes_;
  std::size_t at_ = 0;
};

/// Limits how much memory a count may reserve in advance: elements take more memory than their encoding.
std::size_t believed(std::size_t count) {
  return std::min<std::size_t>(count, 4096);
}

class TreeUnpacker {
 public:
  TreeUnpacker(ByteView head, std::span<const std::span<std::byte>> buffers, const std::shared_ptr<const void>& hold)
      : in_(head), buffers_(buffers), hold_(hold) {}

  std::vector<Item> unpack() {
    std::vector<Item> items;
    const auto count = in_.count();
    items.reserve(believed(count));
    for (std::size_t i = 0; i < count; ++i) items.emplace_back(get_tree(0));
    in_.expect_end();
    if (!buffers_.empty()) in_.fail(fmt::format("{} buffers that no tensor refers to", buffers_.size()));
    return items;
  }

 private:
  Tree get_tree(int depth) {
    const auto kind = in_.kind();
    switch (kind) {
      case NodeKind::none: return None{};
      case NodeKind::no: return false;
      case NodeKind::yes: return true;
      case NodeKind::integer: return in_.get<std::int64_t>();
      case NodeKind::real: return in_.get<double>();
      case NodeKind::text: return std::string(as_text(in_.sized()));
      case NodeKind::bytes: {
        const auto bytes = in_.sized();
        return Bytes(bytes.begin(), bytes.end());
      }
      case NodeKind::small_tensor:
      case NodeKind::tensor: return get_tensor(kind);
      case NodeKind::of_class: {
        Container container{.type_name = std::string(as_text(in_.sized()))};
        const auto state = in_.sized();
        container.state.assign(state.begin(), state.end());
        return get_container(in_.kind(), std::move(container), depth);
      }
      default: return get_container(kind, {}, depth);
    }
  }

  ContainerKind container_kind(NodeKind kind) {
    switch (kind) {
      case NodeKind::list: return ContainerKind::list;
      case NodeKind::tuple: return ContainerKind::tuple;
      case NodeKind::dict: return ContainerKind::dict;
      case NodeKind::record: return ContainerKind::record;
      default: in_.fail(fmt::format("a value of unknown kind {}", static_cast<int>(kind)));
    }
  }

  Tensor get_tensor(NodeKind kind) {
    const auto dtype = in_.get<DType>();
    const auto rank = in_.get<std::uint8_t>();
    if (!dtype.is_known() || rank > Shape::max_rank) in_.fail("a tensor with an unknown type or rank");
    Shape shape;
    for (int dim = 0; dim < rank; ++dim) shape.push_back(static_cast<std::int64_t>(in_.number()));
    const auto bytes = tensor_bytes(dtype, shape);
    if (!bytes) in_.fail(fmt::format("a tensor of shape {}", shape.to_string()));
    if (kind == NodeKind::tensor) return in_buffer(dtype, shape, *bytes);
    if (*bytes > small_tensor_bytes) in_.fail(fmt::format("a tensor of {} bytes among values", *bytes));
    const auto elements = in_.take(*bytes);
    auto tensor = Tensor::empty(dtype, shape);
    if (*bytes > 0) copy_payload(tensor.mutable_bytes().data(), elements.data(), *bytes);
    return tensor;
  }

  Tensor in_buffer(DType dtype, const Shape& shape, std::size_t bytes) {
    if (buffers_.empty() || buffers_.front().size() != bytes) {
      in_.fail(fmt::format("a tensor of {} bytes that no buffer holds", bytes));
    }
    const auto* data = buffers_.front().data();
    buffers_ = buffers_.subspan(1);
    return Tensor(TensorView(dtype, shape, data), hold_, true);
  }

  Tree get_container(NodeKind kind, Container container, int depth) {
    container.kind = container_kind(kind);
    if (depth == max_tree_depth) in_.fail(fmt::format("an item deeper than {} containers", max_tree_depth));
    const auto count = in_.count();
    if (kind == NodeKind::dict || kind == NodeKind::record) {
      container.keys.reserve(believed(count));
      for (std::size_t i = 0; i < count; ++i) container.keys.push_back(get_key());
    }
    container.children.reserve(believed(count));
    for (std::size_t i = 0; i < count; ++i) container.children.push_back(get_tree(depth + 1));
    try {
      return Tree(std::move(container));
    } catch (const InvalidArgument& error) {
      in_.fail(error.what());
    }
  }

  Key get_key() {
    const auto kind = in_.kind();
    if (kind == NodeKind::integer_key) return in_.get<std::int64_t>();
    if (kind != NodeKind::text_key) in_.fail(fmt::format("a key of unknown kind {}", static_cast<int>(kind)));
    return std::string(as_text(in_.sized()));
  }

  HeadReader in_;
  std::span<const std::span<std::byte>> buffers_;
  const std::shared_ptr<const void>& hold_;
};

Tree& tree_in(Item& item) {
  if (auto* tree = std::get_if<Tree>(&item)) return *tree;
  throw_language_object();
}

std::vector<Tree> trees_of(std::vector<Item> items) {
  std::vector<Tree> trees;
  trees.reserve(items.size());
  for (auto& item : items) trees.push_back(std::move(tree_in(item)));
  return trees;
}

/// Returns a Tree whose tensors nothing else refers to, or nothing if a tensor is not in this machine's memory.
std::optional<Tree> detached(const Tree& tree) {
  if (tree.is_leaf()) {
    const auto* tensor = std::get_if<Tensor>(&tree.leaf());
    if (tensor == nullptr || tensor->owner().use_count() == 1) return tree;
    if (!tensor->view().device().is_cpu()) return std::nullopt;
    return Tensor::copy_of(tensor->view());
  }
  const Container& from = tree.container();
  Container container{.kind = from.kind, .type_name = from.type_name, .keys = from.keys, .state = from.state};
  container.children.reserve(from.children.size());
  for (const Tree& child : from.children) {
    auto copy = detached(child);
    if (!copy) return std::nullopt;
    container.children.push_back(*std::move(copy));
  }
  return Tree(std::move(container));
}

}  // namespace

Item TreeItemTraits::list_of(std::vector<Item> items) const {
  return Tree::list(trees_of(std::move(items)));
}

Item TreeItemTraits::tuple_of(std::vector<Item> items) const {
  return Tree::tuple(trees_of(std::move(items)));
}

std::vector<Item> TreeItemTraits::elements(Item item) const {
  const auto& tree = tree_in(item);
  const bool is_batch = !tree.is_leaf() &&
                        (tree.container().kind == ContainerKind::list || tree.container().kind == ContainerKind::tuple);
  if (!is_batch) throw InvalidArgument(fmt::format("expected a batch, got\n{}", tree.to_string()));
  const auto& children = tree.container().children;
  return {children.begin(), children.end()};
}

bool TreeItemTraits::detach(Item& item) const {
  auto copy = detached(tree_in(item));
  if (!copy) return false;
  item = *std::move(copy);
  return true;
}

Tree TreeItemTraits::to_tree(const Item& item) const {
  if (const auto* tree = std::get_if<Tree>(&item)) return *tree;
  throw_language_object();
}

std::vector<Item> TreeItemTraits::from_trees(std::vector<Tree> trees) const {
  return {std::make_move_iterator(trees.begin()), std::make_move_iterator(trees.end())};
}

Arrays TreeItemTraits::arrays_of(const Item& item) const {
  const auto tensor_in = [](const Tree& tree, const std::string& name) {
    if (const auto* tensor = tree.is_leaf() ? std::get_if<Tensor>(&tree.leaf()) : nullptr) return *tensor;
    throw InvalidArgument(fmt::format("{} is not an array", name.empty() ? "the item" : name));
  };
  const auto* tree = std::get_if<Tree>(&item);
  if (tree == nullptr) throw_language_object();
  if (tree->is_leaf() || tree->container().kind != ContainerKind::dict) return {.fields = {{"", tensor_in(*tree, "")}}};
  Arrays arrays;
  const auto& container = tree->container();
  for (std::size_t i = 0; i < container.keys.size(); ++i) {
    const auto* name = std::get_if<std::string>(&container.keys[i]);
    if (name == nullptr) throw InvalidArgument("the name of a field must be a string, not a number");
    arrays.fields.emplace_back(*name, tensor_in(container.children[i], *name));
  }
  return arrays;
}

Item TreeItemTraits::dict_of(Arrays arrays) const {
  std::vector<std::pair<Key, Tree>> fields;
  for (auto& [name, tensor] : arrays.fields) fields.emplace_back(std::move(name), std::move(tensor));
  return Tree::dict(std::move(fields));
}

ItemTraits::Packed TreeItemTraits::pack(std::span<const Item> items) const {
  return TreePacker().pack(items);
}

std::vector<Item> TreeItemTraits::unpack(ByteView head, std::span<const std::span<std::byte>> buffers,
                                         std::shared_ptr<const void> hold) const {
  return TreeUnpacker(head, buffers, hold).unpack();
}

}  // namespace levada::pipeline
