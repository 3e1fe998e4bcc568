#include "levada/feed/envelope.h"

#include <algorithm>

namespace levada::feed_protocol {

std::int64_t Envelope::samples_at(std::int64_t data_coordinate, std::int64_t batch) const {
  return std::clamp<std::int64_t>(samples - data_coordinate * batch, 0, batch);
}

Bytes encode(const Envelope& envelope) {
  ByteWriter writer;
  writer.put(envelope.step);
  writer.put(envelope.samples);
  writer.put_sized(ByteView(envelope.cursor));
  return std::move(writer).take();
}

Envelope decode_envelope(ByteView bytes) {
  ByteReader reader(bytes);
  const auto step = reader.get_at_least<std::int64_t>(0, "step");
  const auto samples = reader.get_at_least<std::int64_t>(0, "number of samples");
  const auto cursor = reader.get_sized();
  reader.expect_end();
  return {.step = step, .samples = samples, .cursor = Bytes(cursor.begin(), cursor.end())};
}

}  // namespace levada::feed_protocol
