// Reads arbitrary bytes as a saved state: rejected as CorruptMessage or Unsupported, or a cursor that survives a round
// trip. Each input is tried as is, and again with a valid checksum appended.
#include <cstdint>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/corpus/cursor.h"
#include "levada/feed/step_cursor.h"

namespace {

void decode(levada::ByteView bytes) {
  try {
    const auto cursor = levada::Cursor::decode(bytes);
    const auto again = levada::Cursor::decode(cursor.encode());
    if (again.next != cursor.next || again.corpus != cursor.corpus || again.order != cursor.order) std::abort();
    again.expect_same(cursor);
  } catch (const levada::CorruptMessage&) {
  } catch (const levada::Unsupported&) {
  }
  try {
    const auto cursor = levada::StepCursor::decode(bytes);
    const auto again = levada::StepCursor::decode(cursor.encode());
    if (again.source != cursor.source || again.delayed != cursor.delayed) std::abort();
  } catch (const levada::CorruptMessage&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const levada::ByteView bytes(reinterpret_cast<const std::byte*>(data), size);
  decode(bytes);
  levada::ByteWriter whole;
  for (const std::byte byte : bytes) whole.put(byte);
  whole.put(levada::hash64(bytes));
  decode(whole.view());
  return 0;
}
