// Heads of frames as bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/engine/engine.h"
#include "levada/engine/p2p/wire.h"

namespace levada::p2p {

/// What a frame says.
struct Head {
  enum class Kind : std::uint8_t {
    message = 1,    ///< `count` bytes for the channel `key`: the tail, or the body where the tail is empty
    taken,          ///< of the channel `key` its sender has taken `count` messages so far
    waiting,        ///< its sender waits for room on the channel `key`: from now on it is to be told of it at once
    sender_closed,  ///< no more messages follow on the channel `key`
    taker_closed,   ///< its sender takes no more from the channel `key`
    entered,        ///< its sender has entered the group `key`
    left,           ///< its sender has left the group `key`
    aborted,        ///< rank `rank` of the group `key` has ended that; the tail is the reason
    lost,           ///< the wire's rank `rank` has ended; the tail says how that was seen
    ask_status,     ///< its sender wants to know this rank's status in the group `key`
    status,         ///< the tail is its sender's, in the group `key`
    goodbye,        ///< the last frame
  };
  Kind kind = Kind::message;
  std::uint64_t key = 0;
  std::uint64_t count = 0;
  std::int32_t rank = -1;
  ByteView tail{};
};

inline constexpr std::size_t head_bytes = 32;
/// The longest message that needs no body.
inline constexpr std::size_t most_inline = most_head - head_bytes;
inline constexpr std::size_t most_reason = 200;

inline bool has_body(const Head& head) {
  return head.kind == Head::Kind::message && head.tail.empty();
}

/// In memory of its own.
Lease encode(const Head& head);
/// Encoded heads end to end, as one frame's. Only the last may be one of a message that has a body.
Lease join(std::span<const Lease> heads);
/// The heads of a frame. Whatever the bytes are: throws CorruptMessage for those that encode() and join() do not make,
/// in a group of `size` ranks. Tails are views of them; what follows the last head is not looked at.
std::vector<Head> decode(ByteView bytes, int size);

}  // namespace levada::p2p
