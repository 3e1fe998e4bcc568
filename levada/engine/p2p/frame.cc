#include "levada/engine/p2p/frame.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <utility>

#include "levada/base/copy.h"
#include "levada/base/error.h"

namespace levada::p2p {
namespace {

constexpr std::uint32_t mark = 0x4c56'0005;  // format 5
constexpr std::uint32_t more = 0x0000'8000;  // with the mark: another entry follows

// The payload of a notice that a channel has been opened.
struct OpenedPayload {
  std::uint64_t group;
  std::int32_t window;
  std::uint32_t reserved;
};

bool is_close(Notice::Kind kind) {
  return kind == Notice::Kind::sender_closed || kind == Notice::Kind::receiver_closed;
}

void expect(bool holds, std::string_view what) {
  if (!holds) throw CorruptMessage(0, fmt::format("a frame's header is corrupt: {}", what));
}

void check(const Entry& entry, int size) {
  using Kind = Entry::Kind;
  const std::size_t payload = entry.payload.size();
  switch (entry.kind) {
    case Kind::message:
      expect(entry.count != 0 && entry.count <= std::numeric_limits<std::int64_t>::max(), "a message without a length");
      expect(payload == 0 || entry.count == payload, "a message of a wrong length");
      return;
    case Kind::notice: {
      constexpr int opened = static_cast<int>(Notice::Kind::opened),
                    departed = static_cast<int>(Notice::Kind::departed);
      expect(entry.rank >= opened && entry.rank <= departed, "an unknown notice");
      expect(payload == (entry.rank == opened ? sizeof(OpenedPayload) : 0), "a notice of a wrong length");
      return;
    }
    case Kind::aborted:
      expect(entry.count <= 0xff && is_abort({.kind = static_cast<ErrorKind>(entry.count)}),
             "an abort of an invalid kind");
      return expect(payload <= max_detail_bytes && entry.rank >= 0 && entry.rank < size, "an abort by an invalid rank");
    case Kind::lost:
      return expect(payload <= max_detail_bytes && entry.rank >= 0 && entry.rank < size, "the loss of an invalid rank");
    case Kind::ask_status: return expect(payload == 0, "a status request with bytes");
    case Kind::status: return expect(payload == sizeof(Status), "a status of a wrong length");
  }
  expect(false, "an unknown kind");
}

/// Returns one entry and its size in bytes.
std::pair<Entry, std::size_t> decode_one(ByteView bytes, bool is_last, int size) {
  ByteReader reader(bytes);
  reader.get<std::uint32_t>();
  const auto payload = reader.get<std::uint32_t>();
  const auto kind = reader.get<std::uint32_t>();
  expect(kind <= static_cast<std::uint32_t>(Entry::Kind::status), "an unknown kind");
  Entry entry{.kind = static_cast<Entry::Kind>(kind)};
  entry.rank = reader.get<std::int32_t>();
  entry.key = reader.get<std::uint64_t>();
  entry.count = reader.get<std::uint64_t>();
  expect(payload <= reader.remaining(), "an entry exceeds the received bytes");
  entry.payload = bytes.subspan(entry_bytes, payload);
  check(entry, size);
  expect(is_last || !has_body(entry), "another entry follows in place of its body");
  return {entry, entry_bytes + payload};
}

}  // namespace

Entry entry_of(const Notice& notice) {
  Entry entry{.kind = Entry::Kind::notice,
              .key = notice.key,
              .count = is_close(notice.kind) ? notice.group : notice.count,
              .rank = static_cast<std::int32_t>(notice.kind)};
  if (notice.kind == Notice::Kind::opened) {
    const auto payload = std::make_shared<const OpenedPayload>(OpenedPayload{notice.group, notice.window, 0});
    entry.payload = std::as_bytes(std::span(payload.get(), 1));
    entry.hold = payload;
  }
  return entry;
}

Entry entry_of(const Ending& ending) {
  const bool is_loss = ending.kind == ErrorKind::peer_lost;
  const auto detail = std::make_shared<const std::string>(ending.detail);
  return {.kind = is_loss ? Entry::Kind::lost : Entry::Kind::aborted,
          .key = ending.group,
          .count = is_loss ? 0 : static_cast<std::uint64_t>(ending.kind),
          .rank = ending.rank,
          .payload = as_bytes(*detail),
          .hold = detail};
}

Lease encode(std::span<const Entry> entries) {
  std::size_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry_bytes + entry.payload.size();
  const auto memory = std::make_shared_for_overwrite<std::byte[]>(bytes);
  std::byte* to = memory.get();
  const auto put = [&to](auto value) {
    std::memcpy(to, &value, sizeof value);  // not payload: a field
    to += sizeof value;
  };
  for (const Entry& entry : entries) {
    put(&entry == &entries.back() ? mark : mark | more);
    put(static_cast<std::uint32_t>(entry.payload.size()));
    put(static_cast<std::uint32_t>(entry.kind));
    put(entry.rank);
    put(entry.key);
    put(entry.count);
    copy_payload(to, entry.payload.data(), entry.payload.size());
    to += entry.payload.size();
  }
  return {.bytes = ByteView(memory.get(), bytes), .hold = memory};
}

Notice notice_of(const Entry& entry) {
  Notice notice{.kind = static_cast<Notice::Kind>(entry.rank), .key = entry.key};
  (is_close(notice.kind) ? notice.group : notice.count) = entry.count;
  if (notice.kind == Notice::Kind::opened) {
    OpenedPayload payload{};
    std::memcpy(&payload, entry.payload.data(), sizeof payload);  // not payload: fields
    notice.group = payload.group;
    notice.window = payload.window;
  }
  return notice;
}

std::vector<Entry> decode(ByteView bytes, int size) {
  std::vector<Entry> entries;
  for (bool is_last = false; !is_last;) {
    const auto marked = ByteReader(bytes).get<std::uint32_t>();
    expect((marked | more) == (mark | more), "it has no valid mark");
    is_last = marked == mark;
    const auto [entry, length] = decode_one(bytes, is_last, size);
    entries.push_back(entry);
    bytes = bytes.subspan(length);
  }
  return entries;
}

}  // namespace levada::p2p
