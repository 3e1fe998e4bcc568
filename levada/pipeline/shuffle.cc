#include <bit>
#include <memory>
#include <variant>

#include "levada/order/permutation.h"
#include "levada/pipeline/checkpointed_input.h"
#include "levada/pipeline/graph_builder.h"

namespace levada::pipeline {
namespace {

/// An item in a buffer that may hold millions. Small values stay small here, whereas an Item reserves space for a
/// tensor with its shape.
class HeldItem {
 public:
  HeldItem() = default;
  HeldItem(Item item, std::int64_t at) : position(at) {
    const Tree* const tree = std::get_if<Tree>(&item);
    const Leaf* const leaf = tree != nullptr && tree->is_leaf() ? &tree->leaf() : nullptr;
    if (auto* const object = std::get_if<LanguageObject>(&item)) held_ = std::move(*object);
    else if (leaf != nullptr && std::holds_alternative<std::int64_t>(*leaf)) held_ = std::get<std::int64_t>(*leaf);
    else if (leaf != nullptr && std::holds_alternative<double>(*leaf)) held_ = std::get<double>(*leaf);
    else held_ = std::make_unique<Item>(std::move(item));
  }
  Item take() {
    if (auto* const object = std::get_if<LanguageObject>(&held_)) return std::move(*object);
    if (const auto* const number = std::get_if<std::int64_t>(&held_)) return Tree(*number);
    if (const auto* const number = std::get_if<double>(&held_)) return Tree(*number);
    return std::move(*std::get<std::unique_ptr<Item>>(held_));
  }

  std::int64_t position = 0;

 private:
  std::variant<std::int64_t, double, LanguageObject, std::unique_ptr<Item>> held_;
};

class ShuffleIterator final : public HoldingIterator<HeldItem> {
 public:
  ShuffleIterator(GraphContextPtr context, int stage, StagePtr input, std::uint64_t seed)
      : HoldingIterator(std::move(context), stage, std::move(input)), seed_(seed) {}

 private:
  std::optional<Item> make_one() override {
    const auto size = static_cast<std::size_t>(capacity());
    while (held_.size() < size) {
      auto item = pull_tracked();
      if (!item) break;
      held_.emplace_back(std::move(*item), num_inputs_ - 1);
    }
    if (held_.empty()) return std::nullopt;
    auto& drawn = held_[below(held_.size())];
    std::optional<Item> item(drawn.take());
    if (&drawn != &held_.back()) drawn = std::move(held_.back());
    held_.pop_back();
    return item;
  }
  HeldItem hold(Item item, std::int64_t position) override { return {std::move(item), position}; }
  std::int64_t capacity() const override { return operation<Shuffle>().buffer; }

  __extension__ using Wide = unsigned __int128;
  std::size_t below(std::size_t limit) {
    const auto bits = derived_seed(seed_, static_cast<std::uint64_t>(num_draws_++));
    return static_cast<std::size_t>((static_cast<Wide>(bits) * limit) >> 64);
  }

  void save_own(Fields& fields) const override {
    fields.emplace_back("seed", std::bit_cast<std::int64_t>(seed_));
    fields.emplace_back("num_draws", num_draws_);
  }
  void restore_own(const CursorFields& own) override {
    seed_ = std::bit_cast<std::uint64_t>(own.integer("seed"));
    num_draws_ = own.count("num_draws");
  }

  std::uint64_t seed_;
  std::int64_t num_draws_ = 0;  ///< random numbers drawn
};

}  // namespace

StagePtr make_stage(const Shuffle& shuffle, const StagePlace& at) {
  return at.make<ShuffleIterator>(at.input(), seed_of(at, shuffle.seed));
}

}  // namespace levada::pipeline
