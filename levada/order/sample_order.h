// Which item each draw from data sets is: arithmetic on numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levada/order/epoch_order.h"
#include "levada/order/mix.h"
#include "levada/order/weighted_order.h"

namespace levada {

/// Returns the seed of what is random about the draw at `position` of an epoch.
std::uint64_t item_seed(std::uint64_t seed, std::int64_t epoch, std::int64_t position);

/// One of the data sets that samples are drawn from.
struct OrderedPart {
  std::string name;  ///< for messages
  std::int64_t items = 0;
  double share = 1;  ///< in a mix
};

struct OrderOptions {
  std::uint64_t seed = 0;
  bool shuffles = false;
  bool mixes = false;                ///< the parts by their shares, instead of one after the other
  std::vector<double> weights = {};  ///< one for each item: draws with replacement; empty: without
  std::int64_t draws = 0;            ///< of an epoch; 0: as many as there are items
};

/// The order of the draws from some data sets, whose items are numbered one set after the other. A draw is named by its
/// epoch and its position in it. Nothing else matters, so the order is the same on every mesh and for any batch size.
/// Draws without replacement continue through the data from epoch to epoch if an epoch does not draw all items.
/// Position p of epoch e in `draws` per epoch is draw g = e * draws + p:
/// - shuffled: EpochOrder at g; as stored: g modulo the items;
/// - weighted: WeightedOrder of a seed derived from item_seed();
/// - mixed: Mix at g names the part and its own draw, which an EpochOrder of that part maps to an item. A Corpus of
///   those sources and weights has the same order.
/// One thread at a time.
class SampleOrder {
 public:
  /// Throws InvalidArgument if there are no items, or too many; for weights as WeightedOrder does, and unless there is
  /// one for each item; for shares as Mix does.
  SampleOrder(const std::vector<OrderedPart>& parts, OrderOptions options);

  std::int64_t items() const { return items_; }
  /// Returns the number of draws of an epoch.
  std::int64_t draws() const { return options_.draws; }
  /// Returns the number of the item at a position, counted over all data sets. Throws InvalidArgument for draws that
  /// cannot be counted in 62 bits.
  std::int64_t at(std::int64_t epoch, std::int64_t position);

 private:
  OrderOptions options_;
  std::int64_t items_ = 0;
  std::vector<std::int64_t> first_;  ///< the number of each part's first item
  std::vector<EpochOrder> orders_;   ///< of all items; in a mix, of each part
  std::optional<Mix> mix_;
  std::optional<WeightedOrder> weighted_;
};

}  // namespace levada
