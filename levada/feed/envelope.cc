#include "levada/feed/envelope.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "levada/base/error.h"

namespace levada::feed_protocol {
namespace {

std::uint32_t fit(std::int64_t number, const char* what) {
  if (std::in_range<std::uint32_t>(number)) return static_cast<std::uint32_t>(number);
  throw InvalidArgument(fmt::format("a round has {} {}; it must be less than 2^32", number, what));
}

}  // namespace

std::int64_t Envelope::samples_at(std::int64_t data_coordinate, std::int64_t batch) const {
  return std::clamp<std::int64_t>(samples - data_coordinate * batch, 0, batch);
}

Bytes encode(const Envelope& envelope) {
  ByteWriter writer;
  writer.put(envelope.round);
  writer.put(fit(envelope.samples, "samples"));
  writer.put(fit(envelope.num_micro, "micro-batches"));
  writer.put(static_cast<std::uint8_t>(std::bit_width(static_cast<unsigned>(envelope.cp_size)) - 1));
  writer.put_sized(ByteView(envelope.cursor));
  return std::move(writer).take();
}

Envelope decode_envelope(ByteView bytes) {
  ByteReader reader(bytes);
  Envelope envelope{.round = reader.get_at_least<std::int64_t>(0, "round")};
  envelope.samples = reader.get<std::uint32_t>();
  envelope.num_micro = reader.get<std::uint32_t>();
  const auto exponent = reader.get<std::uint8_t>();
  constexpr int max_exponent = 30;
  if (exponent > max_exponent) {
    throw CorruptMessage(reader.offset(), fmt::format("a block of 2^{} ranks", exponent));
  }
  envelope.cp_size = 1 << exponent;
  envelope.cursor = reader.get_bytes();
  reader.expect_end();
  return envelope;
}

}  // namespace levada::feed_protocol
