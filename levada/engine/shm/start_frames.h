// Encodes and decodes the frames that ranks of a host exchange after their greetings when they start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/error.h"

namespace levada::shm {

/// Why a start failed, as one rank reports it to the others.
struct StartFailure {
  ErrorKind kind = ErrorKind::engine;
  int lost = -1;  ///< the lost rank (peer_lost)
  std::string message;

  static StartFailure of(const Error& error);
  [[noreturn]] void raise() const { throw_error(kind, message, lost); }
};

enum class FrameKind : std::uint8_t {
  hello = 1,   ///< to rank 0: the sender's rank and how much memory it can use
  plan = 2,    ///< from rank 0: how much memory each rank has, with the files, in as many frames as they need
  ready = 3,   ///< to rank 0: the sender has mapped everything and counts as alive
  go = 4,      ///< from rank 0: all ranks are ready
  failed = 5,  ///< in either direction: why this start has failed
};

struct Hello {
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t process = 0;
  std::uint64_t memory = 0;   ///< maximum size of its data file
  std::uint64_t address = 0;  ///< maximum size of all data files together in its address space
};

Bytes encode(FrameKind kind);
Bytes encode(const Hello& hello);
Bytes encode_plan(const std::vector<std::uint64_t>& memory);
Bytes encode(const StartFailure& cause);

/// A frame whose kind has been read. `rest` reads what follows the kind.
struct OpenedFrame {
  FrameKind kind;
  ByteReader rest;
};
/// Reads the kind of a frame. Throws CorruptMessage if it is unknown, and the reported failure if it is `failed`.
OpenedFrame open_frame(ByteView bytes);
Hello decode_hello(ByteReader& reader);
std::vector<std::uint64_t> decode_plan(ByteReader& reader);

}  // namespace levada::shm
