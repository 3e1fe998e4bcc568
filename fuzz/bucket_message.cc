// Reads arbitrary bytes as the messages of a reduction that other ranks send.
#include <cstdint>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/reduce/bucket_message.h"

namespace {

using levada::BucketLayout;
using levada::MessageHeader;

const BucketLayout& layout() {
  static const BucketLayout three({.dtype = levada::dtypes::float32, .pieces = {{2, 3}, {0}, {40}}}, 2);
  return three;
}

void add_messages(levada::ByteView bytes) {
  levada::PeerMessages peer;
  const std::size_t size = bytes.size() / 2;
  for (const levada::ByteView each : {bytes.first(size), bytes.subspan(size)}) {
    MessageHeader header = MessageHeader::read(each);
    if (header.first_rank % 2 == 0) header.layout_hash = layout().hash();
    peer.add({each, nullptr}, header, layout());
    const auto* const end = each.data() + each.size();
    for (std::size_t i = peer.inputs.size(); i-- > peer.inputs.size() - header.num_inputs && !peer.inputs.empty();) {
      if (peer.layout_hash != layout().hash()) break;
      if (peer.inputs[i] < each.data() || peer.inputs[i] + 2 * layout().piece_bytes(i) > end) std::abort();
    }
  }
}

void decode_spec(levada::ByteView bytes) {
  levada::ByteReader reader(bytes);
  const auto spec = levada::CollectiveSpec::decode(reader);
  const levada::Bytes encoded = spec.encode();
  levada::ByteReader again(encoded);
  if (levada::CollectiveSpec::decode(again) != spec) std::abort();
}

}  // namespace

/// Input: one byte that selects the decoder; then two messages of equal size, or a spec.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const levada::ByteView bytes = std::as_bytes(std::span(data + 1, size - 1));
  try {
    if (data[0] % 2 == 0) add_messages(bytes);
    else decode_spec(bytes);
  } catch (const levada::CorruptMessage&) {
  }
  return 0;
}
