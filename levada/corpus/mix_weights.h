// The weights by which a run mixes its sources, as its cursors record them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levada/corpus/cursor.h"
#include "levada/corpus/mix_file.h"

namespace levada {

struct MixWeights {
  std::vector<double> weights;  ///< of the sources, in their order
  CorpusMix::By by = CorpusMix::By::samples;

  bool operator==(const MixWeights&) const = default;
};

/// "1 2 5 by samples (mix 3)".
std::string to_string(const MixWeights& weights);

/// Weights, and the first sample that is mixed by them.
struct WeightChange {
  std::int64_t first = 0;
  MixWeights weights;
};

/// The first at sample 0, the others in their order.
using WeightHistory = std::vector<WeightChange>;

/// Appends the history to an order, a property a change.
void add_weights(const WeightHistory& history, Order& order);
/// Returns the history in an order, whose text is untrusted; empty if the order is not that of a mix. Throws
/// CorruptMessage; Unsupported if another version of Mix made the order.
WeightHistory weights_in(const Order& order);

}  // namespace levada
