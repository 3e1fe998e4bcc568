// What a feed's reader sends with the tensors of a batch.
#pragma once

#include <cstdint>
#include <optional>

#include "levada/base/bytes.h"
#include "levada/sources/source.h"

namespace levada::feed_protocol {

/// The same to all ranks of an audience.
struct Envelope {
  std::int64_t round = 0;
  std::int64_t samples = 0;              ///< of all batches of the round
  Bytes cursor;                          ///< behind them
  std::optional<MicroBatch> micro = {};  ///< of a balanced feed

  /// How many of the samples are in the batch of this data coordinate, if all batches but the last are of `batch`.
  std::int64_t samples_at(std::int64_t data_coordinate, std::int64_t batch) const;
  bool operator==(const Envelope&) const = default;
};

Bytes encode(const Envelope& envelope);
/// Throws CorruptMessage for bytes that encode() never writes.
Envelope decode_envelope(ByteView bytes);

}  // namespace levada::feed_protocol
