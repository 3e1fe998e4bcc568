#include "levada/engine/p2p/frame.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <utility>

#include "levada/base/copy.h"
#include "levada/base/error.h"

namespace levada::p2p {
namespace {

constexpr std::uint32_t mark = 0x4c56'0003;  // format 3
constexpr std::uint32_t more = 0x0000'8000;  // beside the mark: another entry follows

// The tail of a notice that a channel has been opened.
struct OpenedTail {
  std::uint64_t group;
  std::int32_t window;
  std::uint32_t reserved;
};

void expect(bool holds, std::string_view what) {
  if (!holds) throw CorruptMessage(0, fmt::format("a frame's header is corrupt: {}", what));
}

void check(const Entry& entry, int size) {
  using Kind = Entry::Kind;
  const std::size_t tail = entry.tail.size();
  switch (entry.kind) {
    case Kind::message:
      expect(entry.count != 0 && entry.count <= std::numeric_limits<std::int64_t>::max(), "a message without a length");
      expect(tail == 0 || entry.count == tail, "a message of another length");
      return;
    case Kind::notice: {
      constexpr int opened = static_cast<int>(Notice::Kind::opened),
                    departed = static_cast<int>(Notice::Kind::departed);
      expect(entry.rank >= opened && entry.rank <= departed, "an unknown notice");
      expect(tail == (entry.rank == opened ? sizeof(OpenedTail) : 0), "a notice of another length");
      return;
    }
    case Kind::aborted:
      expect(entry.count == static_cast<std::uint64_t>(ErrorKind::engine) ||
                 entry.count == static_cast<std::uint64_t>(ErrorKind::invalid_argument),
             "an abort of another kind");
      return expect(tail <= max_detail_bytes && entry.rank >= 0 && entry.rank < size, "an abort by no rank");
    case Kind::lost:
      return expect(tail <= max_detail_bytes && entry.rank >= 0 && entry.rank < size, "the loss of no rank");
    case Kind::ask_status: return expect(tail == 0, "bytes where none belong");
    case Kind::status: return expect(tail == sizeof(Status), "a status of another length");
  }
  expect(false, "an unknown kind");
}

/// One entry, and how many bytes it has.
std::pair<Entry, std::size_t> decode_one(ByteView bytes, bool is_last, int size) {
  ByteReader reader(bytes);
  reader.get<std::uint32_t>();
  const auto tail = reader.get<std::uint32_t>();
  const auto kind = reader.get<std::uint32_t>();
  expect(kind <= static_cast<std::uint32_t>(Entry::Kind::status), "an unknown kind");
  Entry entry{.kind = static_cast<Entry::Kind>(kind)};
  entry.rank = reader.get<std::int32_t>();
  entry.key = reader.get<std::uint64_t>();
  entry.count = reader.get<std::uint64_t>();
  expect(tail <= reader.remaining(), "it is longer than what came");
  entry.tail = bytes.subspan(entry_bytes, tail);
  check(entry, size);
  expect(is_last || !has_body(entry), "another entry follows where its body belongs");
  return {entry, entry_bytes + tail};
}

std::shared_ptr<std::byte[]> memory_for(std::size_t bytes) {
  return std::make_shared_for_overwrite<std::byte[]>(bytes);
}

}  // namespace

Lease encode(const Entry& entry) {
  const std::size_t bytes = entry_bytes + entry.tail.size();
  const auto memory = memory_for(bytes);
  std::byte* to = memory.get();
  const auto put = [&to](auto value) {
    std::memcpy(to, &value, sizeof value);  // not payload: a field
    to += sizeof value;
  };
  put(mark);
  put(static_cast<std::uint32_t>(entry.tail.size()));
  put(static_cast<std::uint32_t>(entry.kind));
  put(entry.rank);
  put(entry.key);
  put(entry.count);
  copy_payload(to, entry.tail.data(), entry.tail.size());
  return {.bytes = ByteView(memory.get(), bytes), .hold = memory};
}

Lease encode(const Notice& notice) {
  const OpenedTail tail{notice.group, notice.window, 0};
  const bool opened = notice.kind == Notice::Kind::opened;
  return encode(Entry{.kind = Entry::Kind::notice,
                      .key = notice.key,
                      .count = notice.count,
                      .rank = static_cast<std::int32_t>(notice.kind),
                      .tail = opened ? std::as_bytes(std::span(&tail, 1)) : ByteView()});
}

Notice notice_of(const Entry& entry) {
  Notice notice{.kind = static_cast<Notice::Kind>(entry.rank), .key = entry.key, .count = entry.count};
  if (notice.kind == Notice::Kind::opened) {
    OpenedTail tail{};
    std::memcpy(&tail, entry.tail.data(), sizeof tail);  // not payload: fields
    notice.group = tail.group;
    notice.window = tail.window;
  }
  return notice;
}

Lease join(std::span<const Lease> entries) {
  if (entries.size() == 1) return entries.front();
  std::size_t bytes = 0;
  for (const Lease& entry : entries) bytes += entry.bytes.size();
  const auto memory = memory_for(bytes);
  std::byte* to = memory.get();
  for (const Lease& entry : entries) {
    copy_payload(to, entry.bytes.data(), entry.bytes.size());
    if (&entry != &entries.back()) {
      const std::uint32_t marked = mark | more;
      std::memcpy(to, &marked, sizeof marked);  // not payload: what begins an entry
    }
    to += entry.bytes.size();
  }
  return {.bytes = ByteView(memory.get(), bytes), .hold = memory};
}

std::vector<Entry> decode(ByteView bytes, int size) {
  std::vector<Entry> entries;
  for (bool is_last = false; !is_last;) {
    const auto marked = ByteReader(bytes).get<std::uint32_t>();
    expect((marked | more) == (mark | more), "it does not begin as one");
    is_last = marked == mark;
    const auto [entry, length] = decode_one(bytes, is_last, size);
    entries.push_back(entry);
    bytes = bytes.subspan(length);
  }
  return entries;
}

}  // namespace levada::p2p
