// Encodes and decodes the headers of frames.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/engine/channel_table.h"
#include "levada/engine/engine.h"

namespace levada::p2p {

/// One entry of a frame's header.
struct Entry {
  enum class Kind : std::uint8_t {
    message = 1,  ///< `count` bytes for the channel `key`, in the payload, or in the body if the payload is empty
    notice,       ///< Notice::kind is `rank`; `count` is Notice::count, or Notice::group if the notice is a close
    aborted,  ///< the transport's rank `rank` has ended the group `key`, with kind `count`; the payload is the detail
    lost,     ///< the sender has lost rank `rank` of the transport; the payload says how it noticed
    ask_status,  ///< the sender asks for this rank's status in the group `key`
    status,      ///< the payload is the sender's status in the group `key`
  };
  Kind kind = Kind::message;
  std::uint64_t key = 0;
  std::uint64_t count = 0;
  std::int32_t rank = -1;
  ByteView payload{};
  std::shared_ptr<const void> hold{};  ///< keeps the payload alive until it is encoded; may be empty
};

inline constexpr std::size_t entry_bytes = 32;

inline bool has_body(const Entry& entry) {
  return entry.kind == Entry::Kind::message && entry.payload.empty();
}

/// Return entries that own their payloads.
Entry entry_of(const Notice& notice);
Entry entry_of(const Ending& ending);
/// Encodes the entries, one after another, as the header of one frame, in newly allocated memory. Copies their
/// payloads. Only the last entry may be a message that has a body.
Lease encode(std::span<const Entry> entries);
/// Decodes the entries of a header from untrusted bytes. Throws CorruptMessage if encode() cannot have produced them in
/// a group of `size` ranks. Payloads are views of `bytes`. Ignores bytes after the last entry.
std::vector<Entry> decode(ByteView bytes, int size);
/// Returns the notice in an entry of kind `notice` that decode() returned.
Notice notice_of(const Entry& entry);

}  // namespace levada::p2p
