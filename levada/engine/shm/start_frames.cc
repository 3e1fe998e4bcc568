#include "levada/engine/shm/start_frames.h"

#include <fmt/format.h>

namespace levada::shm {
namespace {

constexpr std::uint64_t magic = 0x6d6873616461766cULL;  // "lvadashm"
/// To be raised with every change of a frame or of the control memory.
constexpr std::uint32_t version = 1;

ByteWriter head(Say say) {
  ByteWriter writer;
  writer.put(magic);
  writer.put(version);
  writer.put(say);
  return writer;
}

Failure decode_failure(ByteReader& reader) {
  Failure failure;
  failure.kind = static_cast<ErrorKind>(reader.get<std::uint8_t>());
  failure.lost = reader.get<std::int32_t>();
  failure.message = reader.get_string();
  return failure;
}

}  // namespace

void raise(const Failure& failure) {
  if (failure.kind == ErrorKind::peer_lost) throw PeerLost(failure.lost, failure.message);
  throw_error(failure.kind, failure.message);
}

Bytes encode(Say say) {
  return head(say).take();
}

Bytes encode(const Hello& hello) {
  ByteWriter writer = head(Say::hello);
  writer.put(hello.rank);
  writer.put(hello.size);
  writer.put(hello.process);
  writer.put(hello.memory);
  writer.put(hello.address);
  return std::move(writer).take();
}

Bytes encode_plan(const std::vector<std::uint64_t>& memory) {
  ByteWriter writer = head(Say::plan);
  writer.put(static_cast<std::uint32_t>(memory.size()));
  for (const std::uint64_t bytes : memory) writer.put(bytes);
  return std::move(writer).take();
}

Bytes encode_peers(std::uint32_t first, std::uint32_t count) {
  ByteWriter writer = head(Say::peers);
  writer.put(first);
  writer.put(count);
  return std::move(writer).take();
}

Bytes encode(const Failure& failure) {
  ByteWriter writer = head(Say::failed);
  writer.put(failure.kind);
  writer.put(failure.lost);
  writer.put_sized(failure.message);
  return std::move(writer).take();
}

Spoken open_frame(ByteView bytes) {
  ByteReader reader(bytes);
  if (bytes.size() < sizeof(magic) + sizeof(version) + sizeof(Say) || reader.get<std::uint64_t>() != magic) {
    throw EngineError(
        "what connects as a rank does not speak as one; is the name of the rendezvous used by something else?");
  }
  if (const auto theirs = reader.get<std::uint32_t>(); theirs != version) {
    throw EngineError(
        fmt::format("another rank runs a Levada whose shm engine has version {}, this one's has {}; run "
                    "the same Levada on all ranks",
                    theirs, version));
  }
  const auto say = static_cast<Say>(reader.get<std::uint8_t>());
  if (say == Say::failed) raise(decode_failure(reader));
  return {say, reader};
}

Hello decode_hello(ByteReader& reader) {
  Hello hello;
  hello.rank = reader.get<std::int32_t>();
  hello.size = reader.get<std::int32_t>();
  hello.process = reader.get<std::int32_t>();
  hello.memory = reader.get<std::uint64_t>();
  hello.address = reader.get<std::uint64_t>();
  reader.expect_end();
  return hello;
}

std::vector<std::uint64_t> decode_plan(ByteReader& reader) {
  std::vector<std::uint64_t> memory(reader.get_count(sizeof(std::uint64_t)));
  for (std::uint64_t& bytes : memory) bytes = reader.get<std::uint64_t>();
  reader.expect_end();
  return memory;
}

}  // namespace levada::shm
