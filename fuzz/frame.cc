// Heads of frames out of any bytes: refused, or views of those bytes.
#include <cstdint>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/engine/p2p/frame.h"

/// One byte: how many ranks there are; then the heads.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const int ranks = 1 + data[0] % 8;
  const levada::ByteView bytes = std::as_bytes(std::span(data + 1, size - 1));
  try {
    for (const auto& head : levada::p2p::decode(bytes, ranks)) {
      if (!head.tail.empty() &&
          (head.tail.data() < bytes.data() || head.tail.data() + head.tail.size() > bytes.data() + bytes.size())) {
        std::abort();
      }
    }
  } catch (const levada::CorruptMessage&) {
  }
  return 0;
}
