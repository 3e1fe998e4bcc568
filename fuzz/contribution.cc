// Messages of a reduction, as they come from other ranks.
#include <cstdint>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/reduce/contribution.h"

/// One byte: the ranks whose pieces are expected; then the message.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const int ranks = 1 + data[0] % 8;
  const levada::ByteView message = std::as_bytes(std::span(data + 1, size - 1));
  try {
    levada::InputsReader reader(ranks);
    const levada::ContributionView received(message, reader);
    const levada::CollectiveSpec& spec = received.spec();
    const int count = received.has_inputs() ? spec.count(ranks) : 0;
    for (std::size_t input = 0; input < spec.pieces.size(); ++input) {
      for (int number = 0; number < count; ++number) {
        const std::byte* piece = received.piece(input, number);
        if (piece < message.data() || piece + spec.piece_bytes(input) > message.data() + message.size()) std::abort();
      }
    }
    const levada::Bytes encoded = spec.encode();
    levada::ByteReader again(encoded);
    if (levada::CollectiveSpec::decode(again) != spec) std::abort();
  } catch (const levada::CorruptMessage&) {
  }
  return 0;
}
