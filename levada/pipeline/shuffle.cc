#include <bit>

#include "levada/corpus/permutation.h"
#include "levada/pipeline/checkpointed_input.h"
#include "levada/pipeline/graph_builder.h"

namespace levada::pipeline {
namespace {

struct HeldItem {
  Item item;
  std::int64_t position = 0;
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
      held_.push_back({std::move(*item), num_inputs_ - 1});
    }
    if (held_.empty()) return std::nullopt;
    auto& drawn = held_[below(held_.size())];
    std::optional<Item> item(std::move(drawn.item));
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
