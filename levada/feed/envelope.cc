#include "levada/feed/envelope.h"

#include <algorithm>

namespace levada::feed_protocol {
namespace {

MicroBatch get_micro_batch(ByteReader& reader) {
  MicroBatch micro{.step = reader.get_at_least<std::int64_t>(0, "step")};
  micro.micro = reader.get_at_least<std::int64_t>(0, "micro-batch");
  micro.num_micro = reader.get_at_least<std::int64_t>(1, "number of micro-batches");
  micro.samples = reader.get_at_least<std::int64_t>(0, "number of samples");
  if (micro.micro >= micro.num_micro) reader.fail("a micro-batch behind the last");
  return micro;
}

}  // namespace

std::int64_t Envelope::samples_at(std::int64_t data_coordinate, std::int64_t batch) const {
  return std::clamp<std::int64_t>(samples - data_coordinate * batch, 0, batch);
}

Bytes encode(const Envelope& envelope) {
  ByteWriter writer;
  writer.put(envelope.round);
  writer.put(envelope.samples);
  writer.put_sized(ByteView(envelope.cursor));
  if (const auto& micro = envelope.micro) {
    for (const auto number : {micro->step, micro->micro, micro->num_micro, micro->samples}) writer.put(number);
  }
  return std::move(writer).take();
}

Envelope decode_envelope(ByteView bytes) {
  ByteReader reader(bytes);
  const auto round = reader.get_at_least<std::int64_t>(0, "round");
  const auto samples = reader.get_at_least<std::int64_t>(0, "number of samples");
  const auto cursor = reader.get_sized();
  Envelope envelope{.round = round, .samples = samples, .cursor = Bytes(cursor.begin(), cursor.end())};
  if (reader.remaining() > 0) envelope.micro = get_micro_batch(reader);
  reader.expect_end();
  return envelope;
}

}  // namespace levada::feed_protocol
