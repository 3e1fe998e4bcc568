// The header that a feed's reader sends with the tensors of a batch.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <tuple>

#include "levada/base/error.h"
#include "levada/base/fields.h"
#include "levada/sources/source.h"

namespace levada::feed_protocol {

/// The header of one batch, the same for all ranks of an audience. The step and micro-batch of a round follow from the
/// earlier rounds.
struct Envelope {
  std::int64_t round = 0;
  std::int64_t samples = 0;    ///< samples in all batches of the round; if num_micro > 0, in this batch
  std::int64_t num_micro = 0;  ///< rounds of the step in a balanced feed; 0: not balanced, each round is a step
  int cp_size = 1;             ///< as MicroBatch::cp_size, a power of two
  Bytes cursor = {};           ///< source position after these samples
  std::optional<StepTotals> totals = {};  ///< totals of the step up to this round; none if several ranks read

  /// Returns the number of samples in this data coordinate's batch, if every batch but the last has `batch` samples.
  std::int64_t samples_at(std::int64_t data_coordinate, std::int64_t batch) const {
    return std::clamp<std::int64_t>(samples - data_coordinate * batch, 0, batch);
  }

  static auto fields(auto& self) {
    return std::tie(self.round, self.samples, self.num_micro, self.cp_size, self.cursor, self.totals);
  }
  void check() const {
    if (!std::has_single_bit(static_cast<unsigned>(cp_size)))
      throw CorruptMessage(0, "a block of ranks of such a size");
  }
  bool operator==(const Envelope&) const = default;
};

}  // namespace levada::feed_protocol
