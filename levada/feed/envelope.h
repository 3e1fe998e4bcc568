// The header that a feed's reader sends with the tensors of a batch.
#pragma once

#include <cstdint>

#include "levada/base/bytes.h"

namespace levada::feed_protocol {

/// The same for all ranks of an audience. The step and micro-batch of a round follow from the rounds before it.
struct Envelope {
  std::int64_t round = 0;
  std::int64_t samples = 0;    ///< samples in all batches of the round; if num_micro > 0, in this batch
  std::int64_t num_micro = 0;  ///< rounds of the step in a balanced feed; 0: not balanced, each round is a step
  int cp_size = 1;             ///< as MicroBatch::cp_size, a power of two
  Bytes cursor = {};           ///< source position after these samples

  /// Returns the number of samples in this data coordinate's batch, if every batch but the last has `batch` samples.
  std::int64_t samples_at(std::int64_t data_coordinate, std::int64_t batch) const;
  bool operator==(const Envelope&) const = default;
};

/// Throws InvalidArgument if a number of samples or micro-batches does not fit in 32 bits.
Bytes encode(const Envelope& envelope);
/// Throws CorruptMessage for bytes that encode() cannot have written.
Envelope decode_envelope(ByteView bytes);

}  // namespace levada::feed_protocol
