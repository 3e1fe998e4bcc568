// What ranks of a host send each other when they start, after their greetings, as bytes and back.
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
  int lost = -1;  ///< peer_lost: the rank
  std::string message;

  static StartFailure of(const Error& error);
  [[noreturn]] void raise() const { throw_error(kind, message, lost); }
};

enum class FrameKind : std::uint8_t {
  hello = 1,   ///< to rank 0: its sender's number, and how much memory it can use
  plan = 2,    ///< from rank 0, in as many frames as the files need: how much memory each rank has; with files
  ready = 3,   ///< to rank 0: I have mapped everything, and count as alive
  go = 4,      ///< from rank 0: everybody does
  failed = 5,  ///< either way: why this start comes to nothing
};

struct Hello {
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t process = 0;
  std::uint64_t memory = 0;   ///< bytes that its data file may have
  std::uint64_t address = 0;  ///< bytes that all data files together may have in its address space
};

Bytes encode(FrameKind kind);
Bytes encode(const Hello& hello);
Bytes encode_plan(const std::vector<std::uint64_t>& memory);
Bytes encode(const StartFailure& cause);

/// A frame whose kind has been read; `rest` follows it.
struct OpenedFrame {
  FrameKind kind;
  ByteReader rest;
};
/// Throws CorruptMessage for bytes of no kind, and what a `failed` says.
OpenedFrame open_frame(ByteView bytes);
Hello decode_hello(ByteReader& reader);
std::vector<std::uint64_t> decode_plan(ByteReader& reader);

}  // namespace levada::shm
