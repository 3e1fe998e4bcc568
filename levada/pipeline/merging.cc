// Stages that merge several iterators into one.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "levada/base/error.h"
#include "levada/order/permutation.h"
#include "levada/pipeline/graph_builder.h"
#include "levada/pipeline/placement.h"

namespace levada::pipeline {
namespace {

class MergingIterator : public StageIterator {
 public:
  MergingIterator(GraphContextPtr context, int stage, std::vector<StagePtr> inputs)
      : StageIterator(std::move(context), stage, nullptr), inputs_(std::move(inputs)) {}

  void conclude() final {
    for (const auto& input : inputs_) input->conclude();
  }

 protected:
  virtual void save_own(Fields&) const {}
  virtual void restore_own(const CursorFields&) {}
  std::optional<Item> pull_from(std::size_t input) {
    return pulled([&] { return inputs_[input]->next(); });
  }

  /// Returns whether inputs may be branches of a fork. Branches must not be skipped one after the other, since they
  /// would then be further apart than the fork's buffer allows.
  bool is_after_fork() const { return Reachability(context_->graph).follows<Fork>(number_); }

  std::vector<StagePtr> inputs_;

 private:
  SavedState saved() const final {
    std::vector<Tree> inputs;
    for (const auto& input : inputs_) inputs.push_back(input->save());
    Fields own = {{"inputs", Tree::list(std::move(inputs))}};
    save_own(own);
    return {{}, std::move(own)};
  }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) final {
    const auto& inputs = list_in_cursor(own.at("inputs"), stage().name);
    if (inputs.size() != inputs_.size() || !before.empty()) own.fail("it has another number of inputs");
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs_[i]->restore(inputs[i]);
    restore_own(own);
  }
  void release() final { inputs_.clear(); }
};

class ZipIterator final : public MergingIterator {
 public:
  using MergingIterator::MergingIterator;

 private:
  std::optional<Item> make() override {
    std::vector<Item> items;
    items.reserve(inputs_.size());
    for (auto& input : inputs_) {
      auto item = waited([&] { return input->next(); });
      if (!item) return std::nullopt;
      items.push_back(std::move(*item));
    }
    ++num_inputs_;
    return guarded([&] { return context_->traits.tuple_of(std::move(items)); });
  }
  std::int64_t skip_impl(std::int64_t items) override {
    if (is_after_fork()) return make_and_drop(items);
    auto passed = items;
    for (auto& input : inputs_) passed = input->skip(passed);
    num_inputs_ += passed;
    return passed;
  }
};

class ConcatIterator final : public MergingIterator {
 public:
  using MergingIterator::MergingIterator;

 private:
  std::optional<Item> make() override {
    for (; at_ < inputs_.size(); ++at_) {
      if (auto item = pull_from(at_)) return item;
    }
    return std::nullopt;
  }
  std::int64_t skip_impl(std::int64_t items) override {
    if (is_after_fork()) return make_and_drop(items);
    std::int64_t passed = 0;
    for (; at_ < inputs_.size(); ++at_) {
      passed += inputs_[at_]->skip(items - passed);
      if (passed == items) break;
    }
    num_inputs_ += passed;
    return passed;
  }
  void save_own(Fields& fields) const override { fields.emplace_back("at", static_cast<std::int64_t>(at_)); }
  void restore_own(const CursorFields& own) override {
    at_ = static_cast<std::size_t>(own.count("at"));
    if (at_ > inputs_.size()) own.fail("it has another number of inputs");
  }

  std::size_t at_ = 0;
};

class InterleaveIterator final : public MergingIterator {
 public:
  InterleaveIterator(GraphContextPtr context, int stage, std::vector<StagePtr> inputs, std::uint64_t seed)
      : MergingIterator(std::move(context), stage, std::move(inputs)),
        seed_(seed),
        weights_(operation<Interleave>().weights),
        ended_(inputs_.size()) {}

 private:
  std::optional<Item> make() override {
    while (std::ranges::count(ended_, true) < std::ssize(ended_)) {
      const auto input = weights_.empty() ? next_in_turn() : draw();
      auto item = pull_from(input);
      if (item && !is_full_cycle()) return item;
      if (item || operation<Interleave>().stop == StopAt::first_end) break;
      ended_[input] = true;
    }
    return std::nullopt;
  }

  /// Returns whether each input has ended once. One that has begun again has yielded one more item.
  bool is_full_cycle() const {
    if (operation<Interleave>().stop != StopAt::full_cycle) return false;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!ended_[i] && inputs_[i]->num_passes() == 0) return false;
    }
    return true;
  }

  std::size_t next_in_turn() {
    while (true) {
      const auto input = static_cast<std::size_t>(num_draws_++) % inputs_.size();
      if (!ended_[input]) return input;
    }
  }

  /// Returns an input that has not ended, chosen with a probability in proportion to its weight.
  std::size_t draw() {
    double sum = 0;
    std::size_t last = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (ended_[i]) continue;
      sum += weights_[i];
      last = i;
    }
    constexpr double all_bits = 0x1p53;
    double point =
        static_cast<double>(derived_seed(seed_, static_cast<std::uint64_t>(num_draws_++)) >> 11) / all_bits * sum;
    for (std::size_t i = 0; i < last; ++i) {
      if (ended_[i]) continue;
      if (point < weights_[i]) return i;
      point -= weights_[i];
    }
    return last;
  }

  void save_own(Fields& fields) const override {
    std::vector<Tree> ended;
    for (const bool each : ended_) ended.emplace_back(each);
    fields.emplace_back("ended_inputs", Tree::list(std::move(ended)));
    fields.emplace_back("seed", std::bit_cast<std::int64_t>(seed_));
    fields.emplace_back("num_draws", num_draws_);
  }
  void restore_own(const CursorFields& own) override {
    const auto& ended = list_in_cursor(own.at("ended_inputs"), stage().name);
    if (ended.size() != ended_.size()) own.fail("it has another number of inputs");
    for (std::size_t i = 0; i < ended.size(); ++i) ended_[i] = ended[i] == Tree(true);
    seed_ = std::bit_cast<std::uint64_t>(own.integer("seed"));
    num_draws_ = own.count("num_draws");
  }

  std::uint64_t seed_;
  std::vector<double> weights_;
  std::vector<bool> ended_;
  std::int64_t num_draws_ = 0;  ///< random numbers drawn
};

}  // namespace

StagePtr make_stage(const Zip&, const StagePlace& at) {
  return at.make<ZipIterator>(at.inputs());
}
StagePtr make_stage(const Concat&, const StagePlace& at) {
  return at.make<ConcatIterator>(at.inputs());
}
StagePtr make_stage(const Interleave& interleave, const StagePlace& at) {
  if (interleave.stop == StopAt::full_cycle) {
    const Stage& stage = at.builder.context()->stage(at.stage);
    for (const int input : stage.inputs) {
      if (!at.builder.is_given(input)) continue;
      throw InvalidArgument(fmt::format(
          "stage \"{}\" counts the passes of \"{}\", which another process runs; put it before what is dispatched",
          stage.name, at.builder.context()->stage(input).name));
    }
  }
  return at.make<InterleaveIterator>(at.inputs(), seed_of(at, interleave.seed));
}

}  // namespace levada::pipeline
