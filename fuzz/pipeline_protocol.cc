// Reads arbitrary bytes as the messages that a pipeline's processes exchange.
#include <cstdint>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/pipeline/item_channel.h"
#include "levada/pipeline/protocol.h"

namespace {

namespace pipeline = levada::pipeline;
namespace protocol = levada::pipeline::protocol;

/// Reads an item message and applies it to both of its readers, which may refuse it.
void read_item_message(levada::ByteView message) {
  const auto parts = pipeline::ItemMessage::read(message);
  for (const levada::ByteView buffer : parts.buffers) {
    if (buffer.data() < message.data() || buffer.data() + buffer.size() > message.data() + message.size()) std::abort();
  }
  if (levada::decode<protocol::Items>(levada::encode(parts.items)) != parts.items) std::abort();
  protocol::OrderedMerge merge(2, {});
  merge.apply(1, parts.items);
  static_cast<void>(merge.next());
  protocol::WorkerInput input(0, 1, 0);
  input.apply(parts.items);
}

}  // namespace

/// Input: one byte that selects the kind; then the message.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const levada::ByteView message = std::as_bytes(std::span(data + 1, size - 1));
  try {
    switch (data[0] % 4) {
      case 0: read_item_message(message); break;
      case 1: {
        const auto command = levada::decode<protocol::Command>(message);
        if (levada::decode<protocol::Command>(levada::encode(command)) != command) std::abort();
        break;
      }
      case 2: {
        const auto ack = levada::decode<protocol::Ack>(message);
        if (levada::decode<protocol::Ack>(levada::encode(ack)) != ack) std::abort();
        break;
      }
      default: {
        const auto items = levada::decode<protocol::Items>(message);
        if (levada::decode<protocol::Items>(levada::encode(items)) != items) std::abort();
      }
    }
  } catch (const levada::CorruptMessage&) {
  }
  return 0;
}
