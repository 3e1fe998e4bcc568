// Reads arbitrary bytes as messages and as schemas. Anything accepted must survive a round trip.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "levada/base/error.h"
#include "levada/tree/codec.h"

namespace levada {
namespace {

// Aborts the process if `holds` is false; the fuzzer reports the input.
void require(bool holds) {
  if (!holds) std::abort();
}

std::uint64_t field(ByteView bytes, std::size_t at) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// Writes a valid prefix over the bytes, so that the fuzzer's mutations get past the hashes.
void seal(std::span<std::byte> bytes) {
  const auto put = [&bytes](std::size_t at, auto value) { std::memcpy(bytes.data() + at, &value, sizeof(value)); };
  const auto room = bytes.size() - message_prefix_bytes;
  const auto body = message_prefix_bytes + (room == 0 ? 0 : field(bytes, 16) % room);
  const auto body_size = bytes.size() - body;
  put(0, std::uint32_t{0x4144564c});
  put(4, std::uint32_t{1});
  put(16, std::uint64_t{body});
  put(24, std::uint64_t{body_size});
  put(32, std::uint64_t{bytes.size()});
  // The schema follows the envelope, the mark and the schema's length.
  std::uint32_t envelope = 0;
  if (body_size >= 9) std::memcpy(&envelope, bytes.data() + body, 4);
  if (body_size >= 9 && envelope <= body_size - 9) {
    std::uint32_t schema = 0;
    const auto at = body + 4 + envelope + 1 + 4;
    std::memcpy(&schema, bytes.data() + at - 4, 4);
    if (schema <= bytes.size() - at) put(8, hash64(bytes.subspan(at, schema)));
  }
  put(56, hash64(bytes.subspan(body), hash64(bytes.first(56))));
}

void read_as_message(ByteView bytes) {
  std::shared_ptr<std::byte[]> memory(new std::byte[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), memory.get());
  const std::span<std::byte> message(memory.get(), bytes.size());
  SchemaCache cache;
  for (const bool sealed : {false, true}) {
    if (sealed && message.size() < message_prefix_bytes) break;
    if (sealed) seal(message);
    try {
      const auto read = read_message(message, memory, cache);
      const auto tree = unflatten(read.content);
      for (const auto& leaf : read.content.schema.leaves()) require(tree.contains(leaf.path));
      const auto again = std::make_shared<Bytes>(encode_tree(tree, read.envelope));
      const auto back = read_message(*again, again, cache);
      require(unflatten(back.content) == tree);
      require(back.envelope == read.envelope);
    } catch (const CorruptMessage& error) {
      require(error.offset() <= message.size());
    }
  }
}

void read_as_schema(ByteView bytes) {
  try {
    const auto schema = Schema::decode(bytes);
    require(std::equal(bytes.begin(), bytes.end(), schema.encoded().begin(), schema.encoded().end()));
    const auto keep = std::make_unique<bool[]>(schema.leaves().size());
    for (std::size_t i = 0; i < schema.leaves().size(); ++i) keep[i] = (schema.fingerprint() >> (i % 64) & 1) != 0;
    const std::span<const bool> choice(keep.get(), schema.leaves().size());
    const auto selected = schema.select(choice);
    require(Schema::decode(selected.encoded()).fingerprint() == selected.fingerprint());
    require(schema.selected_leaves(choice).size() == selected.leaves().size());
  } catch (const CorruptMessage& error) {
    require(error.offset() <= bytes.size());
  }
}

}  // namespace
}  // namespace levada

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  levada::read_as_message(bytes);
  levada::read_as_schema(bytes);
  return 0;
}
