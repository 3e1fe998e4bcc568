#include "levada/tree/codec.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/tensor/elements.h"

namespace levada {
namespace {

constexpr std::uint32_t magic = 0x4144564c;  // "LVDA"
constexpr std::uint32_t format_version = 1;

// The first bytes of a message, in wire layout. `hash` covers the other fields and the body.
struct Prefix {
  std::uint32_t magic = levada::magic;
  std::uint32_t version = format_version;
  std::uint64_t fingerprint = 0;
  std::uint64_t body_offset = 0;
  std::uint64_t body_bytes = 0;
  std::uint64_t message_bytes = 0;
  std::uint64_t reserved[2] = {0, 0};
  std::uint64_t hash = 0;
};
static_assert(sizeof(Prefix) == message_prefix_bytes && std::has_unique_object_representations_v<Prefix>);
static_assert(std::endian::native == std::endian::little, "messages are little-endian and read in place");

std::uint64_t hash_of(const Prefix& prefix, ByteView body) {
  const auto fields = std::as_bytes(std::span(&prefix, 1)).first(offsetof(Prefix, hash));
  return hash64(body, hash64(fields));
}

// Writes fields into memory measured by body_bytes().
class BodyWriter {
 public:
  explicit BodyWriter(std::byte* to) : to_(to) {}
  template <typename T>
  void put(T value) {
    std::memcpy(to_, &value, sizeof(T));
    to_ += sizeof(T);
  }
  void put_sized(ByteView bytes) {
    put(static_cast<std::uint32_t>(bytes.size()));
    if (!bytes.empty()) std::memcpy(to_, bytes.data(), bytes.size());
    to_ += bytes.size();
  }

 private:
  std::byte* to_;
};

std::size_t sized_bytes(std::size_t size, std::string_view what) {
  if (size > std::numeric_limits<std::uint32_t>::max()) {
    throw InvalidArgument(
        fmt::format("{} of {} is too long for a message; make it a tensor", what, format_bytes(size)));
  }
  return sizeof(std::uint32_t) + size;
}

template <typename T>
const T& value_of(const LeafSpec& spec, const Leaf& leaf) {
  if (const auto* value = std::get_if<T>(&leaf)) return *value;
  throw InvalidArgument(fmt::format("the leaf '{}' is not of the kind in its schema", spec.path));
}

std::size_t leaf_bytes(const LeafSpec& spec, const Leaf& leaf) {
  switch (spec.kind) {
    case LeafKind::none: break;
    case LeafKind::boolean: return 1;
    case LeafKind::integer:
    case LeafKind::real: return 8;
    case LeafKind::text: return sized_bytes(value_of<std::string>(spec, leaf).size(), spec.path);
    case LeafKind::bytes: return sized_bytes(value_of<Bytes>(spec, leaf).size(), spec.path);
    case LeafKind::tensor: return spec.alias_of >= 0 ? 0 : (spec.rank + 1u) * sizeof(std::uint64_t);
  }
  return 0;
}

void write_leaf(BodyWriter& out, const LeafSpec& spec, const Leaf& leaf, const PlacedTensor& placed) {
  switch (spec.kind) {
    case LeafKind::none: break;
    case LeafKind::boolean: out.put(static_cast<std::uint8_t>(value_of<bool>(spec, leaf))); break;
    case LeafKind::integer: out.put(value_of<std::int64_t>(spec, leaf)); break;
    case LeafKind::real: out.put(value_of<double>(spec, leaf)); break;
    case LeafKind::text: out.put_sized(as_bytes(value_of<std::string>(spec, leaf))); break;
    case LeafKind::bytes: out.put_sized(value_of<Bytes>(spec, leaf)); break;
    case LeafKind::tensor:
      if (spec.alias_of >= 0) break;
      for (const auto extent : placed.shape) out.put(extent);
      out.put(placed.offset);
  }
}

struct Extent {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Returns the extent of a placed tensor, after checking its offset, alignment and shape.
Extent extent_of(const LeafSpec& spec, const PlacedTensor& placed, Extent body) {
  const auto bytes = tensor_bytes(spec.dtype, placed.shape);
  if (!bytes) {
    throw InvalidArgument(fmt::format("the leaf '{}' cannot have the shape {}", spec.path, placed.shape.to_string()));
  }
  const Extent leaf{placed.offset, placed.offset + *bytes};
  if (placed.shape.rank() != spec.rank) {
    throw InvalidArgument(
        fmt::format("the leaf '{}' has rank {}, but its schema has {}", spec.path, placed.shape.rank(), spec.rank));
  }
  const bool apart = leaf.end <= body.begin || leaf.begin >= body.end || *bytes == 0;
  if (placed.offset % leaf_alignment != 0 || placed.offset < message_prefix_bytes || leaf.end < leaf.begin || !apart) {
    throw InvalidArgument(fmt::format("the leaf '{}' cannot lie at byte {} of its message", spec.path, placed.offset));
  }
  return leaf;
}

// Reads the body, every field of which is untrusted.
class BodyReader {
 public:
  BodyReader(ByteView message, const Prefix& prefix, const std::shared_ptr<const void>& owner)
      : message_(message),
        owner_(owner),
        in_(message.subspan(prefix.body_offset, prefix.body_bytes), prefix.body_offset) {}

  ByteView envelope() { return in_.get_sized(); }

  bool flag(std::string_view what) {
    const auto value = in_.get<std::uint8_t>();
    if (value > 1) in_.fail(fmt::format("{} of {} instead of 0 or 1", what, value));
    return value == 1;
  }

  Schema schema(std::uint64_t fingerprint) {
    const auto at = in_.offset() + sizeof(std::uint32_t);
    const auto bytes = in_.get_sized();
    if (hash64(bytes) != fingerprint) in_.fail("a schema whose fingerprint is not the message's");
    try {
      return Schema::decode(bytes);
    } catch (const CorruptMessage& error) {
      throw CorruptMessage(at + error.offset(), fmt::format("in the schema at byte {}: {}", at, error.what()));
    }
  }

  std::vector<Leaf> leaves(std::span<const LeafSpec> specs) {
    std::vector<Leaf> leaves;
    leaves.reserve(specs.size());
    for (const auto& spec : specs) read_leaf(spec, leaves);
    in_.expect_end();
    return leaves;
  }

 private:
  void read_leaf(const LeafSpec& spec, std::vector<Leaf>& leaves) {
    switch (spec.kind) {
      case LeafKind::none: leaves.emplace_back(None{}); break;
      case LeafKind::boolean: leaves.emplace_back(flag("a bool")); break;
      case LeafKind::integer: leaves.emplace_back(in_.get<std::int64_t>()); break;
      case LeafKind::real: leaves.emplace_back(in_.get<double>()); break;
      case LeafKind::text: leaves.emplace_back(in_.get_string()); break;
      case LeafKind::bytes: leaves.emplace_back(in_.get_bytes()); break;
      case LeafKind::tensor:
        if (spec.alias_of >= 0) leaves.push_back(leaves[static_cast<std::size_t>(spec.alias_of)]);
        else leaves.emplace_back(std::in_place_type<Tensor>, tensor(spec), owner_);
    }
  }

  // Leaves may be anywhere after the prefix, and may even overlap each other or the body, because everything is only
  // read.
  TensorView tensor(const LeafSpec& spec) {
    Shape shape;
    for (std::size_t dim = 0; dim < spec.rank; ++dim) shape.push_back(in_.get<std::int64_t>());
    const auto offset = in_.get<std::uint64_t>();
    const auto bytes = tensor_bytes(spec.dtype, shape);
    if (!bytes) in_.fail(fmt::format("leaf '{}' has the impossible shape {}", spec.path, shape.to_string()));
    if (offset < message_prefix_bytes || offset % leaf_alignment != 0 || offset > message_.size() ||
        *bytes > message_.size() - offset) {
      in_.fail(fmt::format("leaf '{}' of shape {} cannot lie at byte {} of {}", spec.path, shape.to_string(), offset,
                           message_.size()));
    }
    return TensorView(spec.dtype, shape, message_.data() + offset);
  }

  ByteView message_;
  const std::shared_ptr<const void>& owner_;
  ByteReader in_;
};

[[noreturn]] void fail(std::size_t offset, const std::string& what) {
  throw CorruptMessage(offset, fmt::format("corrupt message at byte {}: {}", offset, what));
}

Prefix read_prefix(ByteView message) {
  Prefix prefix;
  if (message.size() < sizeof(Prefix)) fail(message.size(), fmt::format("{} bytes are no message", message.size()));
  std::memcpy(&prefix, message.data(), sizeof(Prefix));
  if (prefix.magic != magic) fail(offsetof(Prefix, magic), "this is no message");
  if (prefix.version != format_version) {
    fail(offsetof(Prefix, version),
         fmt::format("a message of version {}, this build reads version {}", prefix.version, format_version));
  }
  if (prefix.message_bytes != message.size()) {
    fail(offsetof(Prefix, message_bytes), fmt::format("{} bytes instead of {}", message.size(), prefix.message_bytes));
  }
  if (prefix.body_offset < sizeof(Prefix) || prefix.body_offset > message.size() ||
      prefix.body_bytes > message.size() - prefix.body_offset) {
    fail(offsetof(Prefix, body_offset), fmt::format("a body of {} bytes at {} in a message of {}", prefix.body_bytes,
                                                    prefix.body_offset, message.size()));
  }
  if (prefix.hash != hash_of(prefix, message.subspan(prefix.body_offset, prefix.body_bytes))) {
    fail(offsetof(Prefix, hash), "its hash is not that of its content");
  }
  return prefix;
}

}  // namespace

std::size_t body_bytes(const Schema& schema, std::span<const Leaf> leaves, std::size_t envelope_bytes,
                       bool with_schema) {
  const auto specs = schema.leaves();
  if (specs.size() != leaves.size()) {
    throw InvalidArgument(fmt::format("{} leaves for a schema of {}", leaves.size(), specs.size()));
  }
  std::size_t bytes = sized_bytes(envelope_bytes, "an envelope") + 1;
  if (with_schema) bytes += sized_bytes(schema.encoded().size(), "a schema");
  for (std::size_t i = 0; i < specs.size(); ++i) bytes += leaf_bytes(specs[i], leaves[i]);
  return bytes;
}

std::size_t write_message(std::span<std::byte> memory, std::size_t body_offset, ByteView envelope, const Schema& schema,
                          bool with_schema, std::span<const Leaf> leaves, std::span<const PlacedTensor> placed) {
  const auto specs = schema.leaves();
  Prefix prefix;
  prefix.fingerprint = schema.fingerprint();
  prefix.body_offset = body_offset;
  prefix.body_bytes = body_bytes(schema, leaves, envelope.size(), with_schema);
  if (placed.size() != specs.size()) {
    throw InvalidArgument(fmt::format("{} placed tensors for a schema of {} leaves", placed.size(), specs.size()));
  }
  const Extent body{body_offset, body_offset + prefix.body_bytes};
  std::size_t end = body.end;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].kind != LeafKind::tensor || specs[i].alias_of >= 0) continue;
    end = std::max(end, extent_of(specs[i], placed[i], body).end);
  }
  if (body_offset < sizeof(Prefix) || body.end < body.begin || end > memory.size()) {
    throw InvalidArgument(fmt::format("a message of {} with its body at {} does not fit into {}", format_bytes(end),
                                      body_offset, format_bytes(memory.size())));
  }
  prefix.message_bytes = end;

  BodyWriter out(memory.data() + body_offset);
  out.put_sized(envelope);
  out.put(static_cast<std::uint8_t>(with_schema));
  if (with_schema) out.put_sized(schema.encoded());
  for (std::size_t i = 0; i < specs.size(); ++i) write_leaf(out, specs[i], leaves[i], placed[i]);
  prefix.hash = hash_of(prefix, memory.subspan(body_offset, prefix.body_bytes));
  std::memcpy(memory.data(), &prefix, sizeof(Prefix));
  return end;
}

Bytes encode_tree(const Tree& tree, ByteView envelope) {
  const auto flat = flatten(tree);
  const auto specs = flat.schema.leaves();
  std::vector<PlacedTensor> placed(specs.size());
  std::size_t end = message_prefix_bytes;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].kind != LeafKind::tensor || specs[i].alias_of >= 0) continue;
    const auto& view = std::get<Tensor>(flat.leaves[i]).view();
    placed[i] = {view.shape(), end};
    end = align_up(end + view.byte_count(), leaf_alignment);
  }
  Bytes message(end + body_bytes(flat.schema, flat.leaves, envelope.size(), true));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (placed[i].offset == 0) continue;
    copy_elements(std::get<Tensor>(flat.leaves[i]), message.data() + placed[i].offset);
  }
  write_message(message, end, envelope, flat.schema, true, flat.leaves, placed);
  return message;
}

std::optional<Schema> SchemaCache::find(std::uint64_t fingerprint) const {
  const auto found = schemas_.find(fingerprint);
  if (found == schemas_.end()) return std::nullopt;
  return found->second;
}

void SchemaCache::add(const Schema& schema) {
  constexpr std::size_t max_schemas = 64;
  if (!schemas_.insert_or_assign(schema.fingerprint(), schema).second) return;
  order_.push_back(schema.fingerprint());
  if (order_.size() <= max_schemas) return;
  schemas_.erase(order_.front());
  order_.erase(order_.begin());
}

Message read_message(ByteView message, const std::shared_ptr<const void>& owner, SchemaCache& cache) {
  const auto prefix = read_prefix(message);
  BodyReader body(message, prefix, owner);
  Message read;
  const auto envelope = body.envelope();
  read.envelope.assign(envelope.begin(), envelope.end());
  read.had_schema = body.flag("the mark of a schema");
  if (read.had_schema) {
    read.content.schema = body.schema(prefix.fingerprint);
  } else if (auto known = cache.find(prefix.fingerprint)) {
    read.content.schema = *std::move(known);
  } else {
    fail(offsetof(Prefix, fingerprint), fmt::format("schema {:016x} has not been received", prefix.fingerprint));
  }
  read.content.leaves = body.leaves(read.content.schema.leaves());
  if (read.had_schema) cache.add(read.content.schema);
  return read;
}

void add_to_digest(Digest& digest, const TensorView& tensor) {
  digest.update(tensor.dtype().name());
  digest.update(":");
  digest.update(tensor.shape().to_string());
  digest.update(":");
  for_each_runs(tensor, [&digest](const Runs& runs) {
    for (std::size_t i = 0; i < runs.count; ++i) {
      digest.update(ByteView(runs.data + static_cast<std::ptrdiff_t>(i) * runs.stride, runs.run_bytes));
    }
  });
}

}  // namespace levada
