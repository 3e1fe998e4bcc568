// Headers of frames as bytes.
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
    message = 1,  ///< `count` bytes for the channel `key`: the tail, or the body where the tail is empty
    notice,       ///< Notice::kind is `rank`; `count` is Notice::count, or Notice::group of a channel that is closed
    aborted,      ///< rank `rank` of the transport has ended the group `key`, of kind `count`; the tail is the detail
    lost,         ///< the transport's rank `rank` is lost to the sender; the tail is how that was seen
    ask_status,   ///< its sender asks for this rank's status in the group `key`
    status,       ///< the tail is its sender's, in the group `key`
  };
  Kind kind = Kind::message;
  std::uint64_t key = 0;
  std::uint64_t count = 0;
  std::int32_t rank = -1;
  ByteView tail{};
  std::shared_ptr<const void> hold{};  ///< keeps the tail until it is encoded, where nothing else does
};

inline constexpr std::size_t entry_bytes = 32;

inline bool has_body(const Entry& entry) {
  return entry.kind == Entry::Kind::message && entry.tail.empty();
}

/// Entries that keep their own tails.
Entry entry_of(const Notice& notice);
Entry entry_of(const Ending& ending);
/// Encodes entries end to end, as the header of one frame, in memory of its own; copies their tails. Only the last
/// entry may be one of a message that has a body.
Lease encode(std::span<const Entry> entries);
/// The entries of a header. Whatever the bytes are: throws CorruptMessage for those that encode() does not make, in
/// a group of `size` ranks. Tails are views of them; what follows the last entry is ignored.
std::vector<Entry> decode(ByteView bytes, int size);
/// The notice in an entry of that kind, which decode() has returned.
Notice notice_of(const Entry& entry);

}  // namespace levada::p2p
