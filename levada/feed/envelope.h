// What a feed's reader sends with the tensors of a batch.
#pragma once

#include <cstdint>

#include "levada/base/bytes.h"

namespace levada::feed_protocol {

/// The same to all ranks of an audience. Which step and micro-batch a round is follows from the rounds before it.
struct Envelope {
  std::int64_t round = 0;
  std::int64_t samples = 0;    ///< of all batches of the round; with num_micro, of this one
  std::int64_t num_micro = 0;  ///< of a balanced feed: the rounds of the step. 0: it is a step of its own, not balanced
  Bytes cursor = {};           ///< behind the samples

  /// How many of the samples are in the batch of this data coordinate, if all batches but the last are of `batch`.
  std::int64_t samples_at(std::int64_t data_coordinate, std::int64_t batch) const;
  bool operator==(const Envelope&) const = default;
};

/// Throws InvalidArgument for numbers of samples or micro-batches that do not fit in 32 bits.
Bytes encode(const Envelope& envelope);
/// Throws CorruptMessage for bytes that encode() never writes.
Envelope decode_envelope(ByteView bytes);

}  // namespace levada::feed_protocol
