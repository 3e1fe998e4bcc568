#include "levada/engine/p2p/frame.h"

#include <fmt/format.h>

#include <limits>

#include "levada/base/copy.h"
#include "levada/base/error.h"

namespace levada::p2p {
namespace {

constexpr std::uint32_t mark = 0x4c56'0001;  // format 1

void expect(bool holds, std::string_view what) {
  if (!holds) throw CorruptMessage(0, fmt::format("a frame's head is corrupt: {}", what));
}

void check(const Head& head, int size) {
  using Kind = Head::Kind;
  const std::size_t tail = head.tail.size();
  switch (head.kind) {
    case Kind::message:
      expect(head.count != 0 && head.count <= std::numeric_limits<std::int64_t>::max(), "a message without a length");
      expect(tail == 0 ? head.count > most_inline : head.count == tail, "a message of another length");
      return;
    case Kind::aborted: return expect(tail <= most_reason && head.rank >= 0, "an abort that is none");
    case Kind::lost: return expect(tail <= most_reason && head.rank >= 0 && head.rank < size, "the end of no rank");
    case Kind::status: return expect(tail == sizeof(Status), "a status of another length");
    case Kind::taken:
    case Kind::sender_closed:
    case Kind::taker_closed:
    case Kind::entered:
    case Kind::left:
    case Kind::ask_status:
    case Kind::goodbye: return expect(tail == 0, "bytes where none belong");
  }
  expect(false, "a kind that there is not");
}

}  // namespace

Lease encode(const Head& head) {
  ByteWriter fields;
  fields.put(mark);
  fields.put(static_cast<std::uint32_t>(head.tail.size()));
  fields.put(static_cast<std::uint32_t>(head.kind));
  fields.put(head.rank);
  fields.put(head.key);
  fields.put(head.count);
  const auto bytes = std::make_shared<Bytes>(std::move(fields).take());
  bytes->resize(head_bytes + head.tail.size());
  copy_payload(bytes->data() + head_bytes, head.tail.data(), head.tail.size());
  return {.bytes = *bytes, .hold = bytes};
}

Head decode(ByteView bytes, int size) {
  ByteReader reader(bytes);
  expect(reader.get<std::uint32_t>() == mark, "it does not begin as one");
  const auto tail = reader.get<std::uint32_t>();
  const auto kind = reader.get<std::uint32_t>();
  expect(kind <= static_cast<std::uint32_t>(Head::Kind::goodbye), "a kind that there is not");
  Head head{.kind = static_cast<Head::Kind>(kind)};
  head.rank = reader.get<std::int32_t>();
  head.key = reader.get<std::uint64_t>();
  head.count = reader.get<std::uint64_t>();
  expect(tail <= reader.remaining(), "it is longer than what came");
  head.tail = bytes.subspan(head_bytes, tail);
  check(head, size);
  return head;
}

}  // namespace levada::p2p
