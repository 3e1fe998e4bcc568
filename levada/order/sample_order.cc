#include "levada/order/sample_order.h"

#include <fmt/format.h>

#include <utility>

#include "levada/base/error.h"

namespace levada {
namespace {

constexpr auto max_draws = std::int64_t{1} << 62;

/// Streams of an item's seed. Python uses stream 1 for collate functions.
constexpr std::uint64_t weighted_stream = 2;

void check(bool holds, const std::string& text) {
  if (!holds) throw InvalidArgument(text);
}

}  // namespace

std::uint64_t item_seed(std::uint64_t seed, std::int64_t epoch, std::int64_t position) {
  return derived_seed(derived_seed(seed, static_cast<std::uint64_t>(epoch)), static_cast<std::uint64_t>(position));
}

SampleOrder::SampleOrder(const std::vector<OrderedPart>& parts, OrderOptions options) : options_(std::move(options)) {
  for (const auto& part : parts) {
    check(part.items >= 0 && part.items < max_draws - items_, "the data sets have 2^62 items or more");
    first_.push_back(items_);
    items_ += part.items;
  }
  check(items_ > 0, "the data set has no items");
  if (options_.draws == 0) options_.draws = items_;
  const auto seed = options_.shuffles ? std::optional(options_.seed) : std::nullopt;
  if (!options_.weights.empty()) {
    check(options_.weights.size() == static_cast<std::uint64_t>(items_),
          fmt::format("weights has {} numbers, but the data set has {} items; give one for each item",
                      options_.weights.size(), items_));
    weighted_.emplace(options_.weights);
    options_.weights = {};
  } else if (options_.mixes) {
    std::vector<MixPart> shares;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      check(parts[k].items > 0, fmt::format("the data set {} has no items; leave it out of the mix", parts[k].name));
      shares.push_back({parts[k].name, parts[k].share, {}});
      orders_.emplace_back(parts[k].items, seed && parts.size() > 1 ? derived_seed(*seed, k + 1) : seed);
    }
    mix_.emplace(shares, derived_seed(options_.shuffles ? options_.seed : 0, 0));
  } else {
    orders_.emplace_back(items_, seed);
  }
}

std::int64_t SampleOrder::at(std::int64_t epoch, std::int64_t position) {
  check(epoch >= 0 && position >= 0 && position < max_draws && epoch < (max_draws - position) / options_.draws,
        fmt::format("position {} of epoch {} is past the last of 2^62 draws", position, epoch));
  if (weighted_) return weighted_->at(derived_seed(item_seed(options_.seed, epoch, position), weighted_stream));
  const auto draw = epoch * options_.draws + position;
  if (!mix_) return orders_[0].at(draw);
  const auto mixed = mix_->at(draw);
  return first_[mixed.source] + orders_[mixed.source].at(mixed.number);
}

}  // namespace levada
