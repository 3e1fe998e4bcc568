#include "levada/engine/shm/start_frames.h"

#include <fmt/format.h>

namespace levada::shm {
namespace {

constexpr std::uint64_t magic = 0x6d6873616461766cULL;  // "lvadashm"
/// To be raised with every change of a frame or of the control memory.
constexpr std::uint32_t version = 3;

ByteWriter head(FrameKind kind) {
  ByteWriter writer;
  writer.put(magic);
  writer.put(version);
  writer.put(kind);
  return writer;
}

StartFailure decode_cause(ByteReader& reader) {
  StartFailure cause;
  cause.kind = reader.get_enum(ErrorKind::invalid_argument, ErrorKind::engine, "kind of error");
  cause.lost = reader.get_at_least<std::int32_t>(-1, "rank");
  cause.message = reader.get_string();
  reader.expect_end();
  return cause;
}

}  // namespace

StartFailure StartFailure::of(const Error& error) {
  const auto* const lost = dynamic_cast<const PeerLost*>(&error);
  return {.kind = error.kind(), .lost = lost != nullptr ? lost->rank() : -1, .message = error.what()};
}

Bytes encode(FrameKind kind) {
  return head(kind).take();
}

Bytes encode(const Hello& hello) {
  ByteWriter writer = head(FrameKind::hello);
  writer.put(hello.rank);
  writer.put(hello.size);
  writer.put(hello.process);
  writer.put(hello.memory);
  writer.put(hello.address);
  return std::move(writer).take();
}

Bytes encode_plan(const std::vector<std::uint64_t>& memory) {
  ByteWriter writer = head(FrameKind::plan);
  writer.put(static_cast<std::uint32_t>(memory.size()));
  for (const std::uint64_t bytes : memory) writer.put(bytes);
  return std::move(writer).take();
}

Bytes encode(const StartFailure& cause) {
  ByteWriter writer = head(FrameKind::failed);
  writer.put(cause.kind);
  writer.put(std::int32_t{cause.lost});
  writer.put_sized(cause.message);
  return std::move(writer).take();
}

bool is_from_rank(ByteView bytes) {
  return bytes.size() >= sizeof(magic) + sizeof(version) + sizeof(FrameKind) &&
         ByteReader(bytes).get<std::uint64_t>() == magic;
}

OpenedFrame open_frame(ByteView bytes) {
  ByteReader reader(bytes);
  if (!is_from_rank(bytes)) {
    throw EngineError(
        "a process that is no rank connected as one; is the name of the rendezvous used by something else?");
  }
  static_cast<void>(reader.get<std::uint64_t>());
  if (const auto theirs = reader.get<std::uint32_t>(); theirs != version) {
    throw EngineError(
        fmt::format("another rank runs a Levada whose shm engine has version {}, this one's has {}; run "
                    "the same Levada on all ranks",
                    theirs, version));
  }
  const auto kind = reader.get_enum(FrameKind::hello, FrameKind::failed, "kind of frame");
  if (kind == FrameKind::failed) decode_cause(reader).raise();
  return {kind, reader};
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
