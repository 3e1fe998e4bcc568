#include "levada/tree/schema.h"

#include <fmt/format.h>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/tensor/codec.h"
#include "levada/tree/path.h"
#include "levada/tree/schema_node.h"

namespace levada {
namespace {

using Node = Schema::Node;

// The encoding: a version, then the nodes depth first, each a tag and the tag's data.
constexpr std::uint8_t encoding_version = 1;
constexpr std::uint8_t alias_tag = 7;       // beyond the LeafKinds
constexpr std::uint8_t container_tag = 16;  // plus a ContainerKind

enum class KeyTag : std::uint8_t { text = 0, integer = 1 };

void encode_leaf(const Node& node, ByteWriter& out) {
  if (node.alias_of >= 0) {
    out.put(alias_tag);
    out.put(static_cast<std::uint32_t>(node.alias_of));
    return;
  }
  out.put(node.leaf);
  if (node.leaf != LeafKind::tensor) return;
  put_dtype(out, node.dtype);
  out.put(node.rank);
}

void encode_key(const Key& key, ByteWriter& out) {
  if (const auto* number = std::get_if<std::int64_t>(&key)) {
    out.put(KeyTag::integer);
    out.put(*number);
  } else {
    out.put(KeyTag::text);
    out.put_sized(std::get<std::string>(key));
  }
}

void encode_node(const Node& node, ByteWriter& out) {
  if (node.is_leaf()) return encode_leaf(node, out);
  out.put(static_cast<std::uint8_t>(container_tag + static_cast<std::uint8_t>(*node.kind)));
  out.put_sized(node.type_name);
  out.put_sized(node.state);
  out.put(static_cast<std::uint32_t>(node.children.size()));
  for (std::size_t i = 0; i < node.children.size(); ++i) {
    if (node.has_keys()) encode_key(node.keys[i], out);
    encode_node(node.children[i], out);
  }
}

class Decoder {
 public:
  explicit Decoder(ByteView bytes) : in_(bytes) {}

  Node decode() {
    if (const auto version = in_.get<std::uint8_t>(); version != encoding_version) {
      in_.fail(fmt::format("a schema of version {}, this build reads version {}", version, encoding_version));
    }
    auto root = node(0);
    in_.expect_end();
    return root;
  }
  [[noreturn]] void fail(const std::string& what) const { in_.fail(what); }

 private:
  Node node(int depth) {
    if (++nodes_ > max_tree_nodes) in_.fail(fmt::format("a schema of more than {} nodes", max_tree_nodes));
    const auto tag = in_.get<std::uint8_t>();
    if (tag > container_tag && tag <= container_tag + static_cast<std::uint8_t>(ContainerKind::record)) {
      if (depth == max_tree_depth) in_.fail(fmt::format("a schema deeper than {} containers", max_tree_depth));
      return container(static_cast<ContainerKind>(tag - container_tag), depth);
    }
    auto found = tag == alias_tag ? alias() : leaf(tag);
    leaves_.push_back({found.leaf, found.dtype, found.rank, found.alias_of >= 0});
    return found;
  }

  Node leaf(std::uint8_t tag) {
    if (tag > static_cast<std::uint8_t>(LeafKind::tensor)) in_.fail(fmt::format("a node of unknown kind {}", tag));
    Node found;
    found.leaf = static_cast<LeafKind>(tag);
    if (found.leaf != LeafKind::tensor) return found;
    found.dtype = get_dtype(in_);
    found.rank = in_.get<std::uint8_t>();
    if (found.rank > Shape::max_rank) in_.fail(fmt::format("a tensor of rank {}", found.rank));
    return found;
  }

  Node alias() {
    const auto number = in_.get<std::uint32_t>();
    if (number >= leaves_.size() || leaves_[number].kind != LeafKind::tensor || leaves_[number].is_alias) {
      in_.fail(fmt::format("an alias of leaf {}, which is no earlier tensor", number));
    }
    Node found;
    found.leaf = LeafKind::tensor;
    found.dtype = leaves_[number].dtype;
    found.rank = leaves_[number].rank;
    found.alias_of = static_cast<int>(number);
    return found;
  }

  Node container(ContainerKind kind, int depth) {
    Node found;
    found.kind = kind;
    found.type_name = in_.get_string();
    found.state = in_.get_bytes();
    const auto count = in_.get_count(found.has_keys() ? 1 + sizeof(std::uint32_t) + 1 : 1);
    // A child takes far more memory than its minimum encoding, so memory grows as children are read.
    for (std::uint32_t i = 0; i < count; ++i) {
      if (found.has_keys()) found.keys.push_back(key(kind));
      found.children.push_back(node(depth + 1));
    }
    if (first_duplicate(found.keys) != nullptr) in_.fail("a container with a repeated key");
    return found;
  }

  Key key(ContainerKind kind) {
    const auto tag = in_.get<std::uint8_t>();
    if (tag == static_cast<std::uint8_t>(KeyTag::text)) return in_.get_string();
    if (tag != static_cast<std::uint8_t>(KeyTag::integer)) in_.fail(fmt::format("a key of unknown kind {}", tag));
    if (kind == ContainerKind::record) in_.fail("a record's field that is no name");
    return in_.get<std::int64_t>();
  }

  ByteReader in_;
  std::size_t nodes_ = 0;
  struct LeafRecord {
    LeafKind kind;
    DType dtype;
    std::uint8_t rank;
    bool is_alias;
  };
  std::vector<LeafRecord> leaves_;
};

// Builds the leaves' paths, once per schema.
class LeafLister {
 public:
  /// Returns false if the paths are longer than max_path_bytes.
  bool list(const Node& node) {
    if (node.is_leaf()) {
      paths_ += path_.size();
      if (paths_ > max_path_bytes) return false;
      leaves_.push_back({path_, node.leaf, node.dtype, node.rank, node.alias_of});
      return true;
    }
    const auto before = path_.size();
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (node.has_keys()) append_key(path_, node.keys[i]);
      else append_position(path_, i);
      if (!list(node.children[i])) return false;
      path_.resize(before);
    }
    return true;
  }
  std::vector<LeafSpec> take() { return std::move(leaves_); }

 private:
  std::vector<LeafSpec> leaves_;
  std::string path_;
  std::size_t paths_ = 0;
};

}  // namespace

struct Schema::State {
  Node root;
  std::vector<LeafSpec> leaves;
  Bytes encoded;
  std::uint64_t fingerprint = 0;

  // Returns null if the leaves' paths are too long.
  static std::shared_ptr<const State> make(Node root) {
    LeafLister lister;
    if (!lister.list(root)) return nullptr;
    ByteWriter out;
    out.put(encoding_version);
    encode_node(root, out);
    auto encoded = std::move(out).take();
    const auto fingerprint = hash64(encoded);
    return std::make_shared<const State>(State{std::move(root), lister.take(), std::move(encoded), fingerprint});
  }
};

Schema::Schema() {
  static const auto lone_none = State::make({});
  state_ = lone_none;
}

Schema::Schema(std::shared_ptr<const State> state) : state_(std::move(state)) {}

Schema::Schema(Node root) : state_(State::make(std::move(root))) {
  if (!state_) {
    throw InvalidArgument(fmt::format("the paths of a tree's leaves take more than {} in all; shorten its keys",
                                      format_bytes(max_path_bytes)));
  }
}

std::uint64_t Schema::fingerprint() const {
  return state_->fingerprint;
}

std::span<const LeafSpec> Schema::leaves() const {
  return state_->leaves;
}

ByteView Schema::encoded() const {
  return state_->encoded;
}

const Schema::Node& Schema::root() const {
  return state_->root;
}

Schema Schema::decode(ByteView bytes) {
  Decoder decoder(bytes);
  auto state = State::make(decoder.decode());
  if (!state) decoder.fail(fmt::format("a schema whose paths take more than {}", format_bytes(max_path_bytes)));
  return Schema(std::move(state));
}

}  // namespace levada
