#include "levada/engine/p2p/frame.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <utility>

#include "levada/base/copy.h"
#include "levada/base/error.h"

namespace levada::p2p {
namespace {

constexpr std::uint32_t mark = 0x4c56'0002;  // format 2
constexpr std::uint32_t more = 0x0000'8000;  // beside the mark: another head follows

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
    case Kind::waiting:
    case Kind::sender_closed:
    case Kind::taker_closed:
    case Kind::entered:
    case Kind::left:
    case Kind::ask_status:
    case Kind::goodbye: return expect(tail == 0, "bytes where none belong");
  }
  expect(false, "a kind that there is not");
}

/// One head, and how many bytes it has.
std::pair<Head, std::size_t> decode_one(ByteView bytes, bool is_last, int size) {
  ByteReader reader(bytes);
  reader.get<std::uint32_t>();
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
  expect(is_last || !has_body(head), "another follows where its body belongs");
  return {head, head_bytes + tail};
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

Lease join(std::span<const Lease> heads) {
  if (heads.size() == 1) return heads.front();
  const auto bytes = std::make_shared<Bytes>();
  for (const Lease& head : heads) {
    const std::size_t at = bytes->size();
    bytes->resize(at + head.bytes.size());
    copy_payload(bytes->data() + at, head.bytes.data(), head.bytes.size());
    if (&head == &heads.back()) continue;
    const std::uint32_t marked = mark | more;
    std::memcpy(bytes->data() + at, &marked, sizeof marked);  // not payload: what begins a head
  }
  return {.bytes = *bytes, .hold = bytes};
}

std::vector<Head> decode(ByteView bytes, int size) {
  std::vector<Head> heads;
  for (bool is_last = false; !is_last;) {
    const auto marked = ByteReader(bytes).get<std::uint32_t>();
    expect((marked | more) == (mark | more), "it does not begin as one");
    is_last = marked == mark;
    const auto [head, length] = decode_one(bytes, is_last, size);
    heads.push_back(head);
    bytes = bytes.subspan(length);
  }
  return heads;
}

}  // namespace levada::p2p
