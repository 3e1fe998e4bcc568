// The item of each draw from data sets, as arithmetic on numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levada/order/epoch_order.h"
#include "levada/order/mix.h"
#include "levada/order/weighted_order.h"

namespace levada {

/// Returns the seed for random choices about the draw at `position` of an epoch.
std::uint64_t item_seed(std::uint64_t seed, std::int64_t epoch, std::int64_t position);

/// A data set from which samples are drawn.
struct OrderedPart {
  std::string name;  ///< for messages
  std::int64_t items = 0;
  double share = 1;  ///< in a mix
};

struct OrderOptions {
  std::uint64_t seed = 0;
  bool shuffles = false;
  bool mixes = false;                ///< mixes the parts by their shares, instead of reading one after another
  std::vector<double> weights = {};  ///< one per item: draws with replacement; empty: draws without replacement
  std::int64_t draws = 0;            ///< per epoch; 0: as many as there are items
};

/// The order of draws from some data sets, whose items are numbered one set after another. A draw is identified by its
/// epoch and its position in it. Nothing else matters, so the order is the same on every mesh and for any batch size.
/// If an epoch does not draw all items, draws without replacement continue through the data from epoch to epoch.
/// Position p of epoch e is draw g = e * draws + p:
/// - shuffled: EpochOrder at g; as stored: g modulo the number of items;
/// - weighted: WeightedOrder with a seed derived from item_seed();
/// - mixed: Mix at g yields the part and the number of the draw in that part, which an EpochOrder of the part maps to
///   an item. A Corpus of the same sources and weights has the same order.
/// One thread at a time.
class SampleOrder {
 public:
  /// Throws InvalidArgument if there are no items or too many; for weights as WeightedOrder does, and unless there is
  /// one for each item; for shares as Mix does.
  SampleOrder(const std::vector<OrderedPart>& parts, OrderOptions options);

  std::int64_t items() const { return items_; }
  /// Returns the number of draws per epoch.
  std::int64_t draws() const { return options_.draws; }
  /// Returns the number of the item at a position, counted over all data sets. Throws InvalidArgument if the number of
  /// the draw exceeds 62 bits.
  std::int64_t at(std::int64_t epoch, std::int64_t position);

 private:
  OrderOptions options_;
  std::int64_t items_ = 0;
  std::vector<std::int64_t> first_;  ///< number of each part's first item
  std::vector<EpochOrder> orders_;   ///< one for all items or, in a mix, for each part
  std::optional<Mix> mix_;
  std::optional<WeightedOrder> weighted_;
};

}  // namespace levada
