#include "levada/feed/step_cursor.h"

#include <cstring>

#include "levada/base/error.h"
#include "levada/base/hash.h"

namespace levada {
namespace {

constexpr std::uint32_t magic = 0x5953454c;  // "LESY"

}  // namespace

Bytes StepCursor::encode() const {
  if (delayed.empty()) return source;
  ByteWriter writer;
  writer.put(magic);
  writer.put(static_cast<std::uint32_t>(delayed.size()));
  for (const auto& sample : delayed) {
    writer.put(sample.number);
    writer.put(sample.waited);
  }
  writer.put_sized(ByteView(source));
  writer.put(hash64(writer.view()));
  return std::move(writer).take();
}

StepCursor StepCursor::decode(ByteView bytes) {
  StepCursor cursor;
  if (bytes.size() < sizeof(magic) || std::memcmp(bytes.data(), &magic, sizeof(magic)) != 0) {
    cursor.source.assign(bytes.begin(), bytes.end());
    return cursor;
  }
  ByteReader reader(bytes.subspan(sizeof(magic)), sizeof(magic));
  cursor.delayed.resize(reader.get_count(2 * sizeof(std::int64_t)));
  std::int64_t last = -1;
  for (auto& sample : cursor.delayed) {
    sample.number = reader.get<std::int64_t>();
    sample.waited = reader.get<std::int64_t>();
    if (sample.number <= last || sample.waited < 0 || sample.waited > INT64_MAX / 2) {
      reader.fail("a delayed sample that cannot be");
    }
    last = sample.number;
  }
  cursor.source = reader.get_bytes();
  const auto end = reader.offset();
  if (reader.get<std::uint64_t>() != hash64(bytes.first(end))) reader.fail("a check sum that does not match");
  reader.expect_end();
  return cursor;
}

}  // namespace levada
