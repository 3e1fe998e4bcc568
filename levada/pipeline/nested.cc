// Stages that make several items from one.
#include "levada/pipeline/checkpointed_input.h"
#include "levada/pipeline/graph_builder.h"

namespace levada::pipeline {
namespace {

/// The items of a batch.
class Elements final : public Iterator {
 public:
  explicit Elements(std::vector<Item> items) : items_(std::move(items)) {}

  std::optional<Item> next() override {
    if (at_ == items_.size()) return std::nullopt;
    return std::move(items_[at_++]);
  }
  Cursor save() const override { return Tree(static_cast<std::int64_t>(at_)); }
  void restore(const Cursor& cursor) override {
    at_ = static_cast<std::size_t>(position_in(cursor, std::ssize(items_)));
  }

 private:
  std::vector<Item> items_;
  std::size_t at_ = 0;
};

class FlatMapIterator final : public StageIterator {
 public:
  FlatMapIterator(GraphContextPtr context, int stage, StagePtr input, std::function<IteratorPtr(Item)> function,
                  OnError on_error)
      : StageIterator(context, stage, nullptr),
        outer_(context, stage, std::move(input)),
        function_(std::move(function)),
        on_error_(on_error) {}

  void conclude() override { outer_.conclude(); }

 private:
  std::optional<Item> make() override {
    if (inner_cursor_) reopen();
    for (;;) {
      if (inner_ != nullptr) {
        auto item = attempted(on_error_, [&] { return inner_->next(); });
        if (item && *item) return std::move(*item);
        inner_.reset();
      }
      auto item = pulled([&] { return outer_.next(); });
      if (!item) return std::nullopt;
      outer_.keep_from(num_inputs_ - 1);
      if (auto made = attempted(on_error_, [&] { return function_(std::move(*item)); })) inner_ = std::move(*made);
    }
  }

  // Rereads the item whose elements were being yielded.
  void reopen() {
    const auto cursor = *std::exchange(inner_cursor_, std::nullopt);
    auto item = waited([&] { return outer_.next(); });
    guarded([&] {
      if (!item) throw_past_end(num_inputs_ - 1);
      inner_ = function_(std::move(*item));
      if (inner_ != nullptr) inner_->restore(cursor);
    });
  }

  SavedState saved() const override {
    const bool inside = inner_ != nullptr || inner_cursor_;
    auto point = outer_.at(inside ? num_inputs_ - 1 : num_inputs_);
    Fields own = {{"skip", point.skip}};
    if (inside) own.emplace_back("inner", inner_cursor_ ? *inner_cursor_ : inner_->save());
    return {std::move(point.entries), std::move(own)};
  }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    if (own.has("inner")) inner_cursor_ = own.at("inner");
    if (inner_cursor_ && num_inputs_ == 0) own.fail("it is inside an item, but has received none");
    outer_.restore(before, inner_cursor_ ? num_inputs_ - 1 : num_inputs_, own.count("skip"));
  }
  void release() override {
    inner_.reset();
    outer_.release();
  }

  CheckpointedInput outer_;
  std::function<IteratorPtr(Item)> function_;
  OnError on_error_;
  IteratorPtr inner_;
  std::optional<Cursor> inner_cursor_;  ///< position to resume at, until inner_ is reopened
};

}  // namespace

StagePtr make_stage(const FlatMap& flat_map, const StagePlace& at) {
  return at.make<FlatMapIterator>(at.input(), flat_map.function, flat_map.on_error);
}

StagePtr make_stage(const Unbatch&, const StagePlace& at) {
  const auto elements = [&traits = at.builder.context()->traits](Item item) -> IteratorPtr {
    return std::make_unique<Elements>(traits.elements(std::move(item)));
  };
  return at.make<FlatMapIterator>(at.input(), elements, OnError::raise);
}

}  // namespace levada::pipeline
