// The weights by which a run mixes its sources, as recorded in its cursors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levada/corpus/cursor.h"
#include "levada/corpus/mix_file.h"

namespace levada {

struct MixWeights {
  std::vector<double> weights;  ///< in the order of the sources
  CorpusMix::By by = CorpusMix::By::samples;

  bool operator==(const MixWeights&) const = default;
};

/// Returns "1 2 5 by samples (mix 3)".
std::string to_string(const MixWeights& weights);

/// Weights, and the first sample to which they apply.
struct WeightChange {
  std::int64_t first = 0;
  MixWeights weights;
};

/// All changes in order, the first one at sample 0.
using WeightHistory = std::vector<WeightChange>;

/// Appends the history to an order, one property per change.
void add_weights(const WeightHistory& history, Order& order);
/// Returns the history in an order, whose text is untrusted; empty if it is not the order of a mix. Throws
/// CorruptMessage; Unsupported if another version of Mix made the order.
WeightHistory weights_in(const Order& order);

}  // namespace levada
