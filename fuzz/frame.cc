// Reads arbitrary bytes as frame headers. The views of an accepted header must point into those bytes.
#include <cstdint>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/engine/p2p/frame.h"

/// Input: one byte, the number of ranks; then the header.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const int ranks = 1 + data[0] % 8;
  const levada::ByteView bytes = std::as_bytes(std::span(data + 1, size - 1));
  try {
    for (const auto& entry : levada::p2p::decode(bytes, ranks)) {
      if (!entry.payload.empty() && (entry.payload.data() < bytes.data() ||
                                     entry.payload.data() + entry.payload.size() > bytes.data() + bytes.size())) {
        std::abort();
      }
      if (entry.kind == levada::p2p::Entry::Kind::notice) static_cast<void>(levada::p2p::notice_of(entry));
    }
  } catch (const levada::CorruptMessage&) {
  }
  return 0;
}
