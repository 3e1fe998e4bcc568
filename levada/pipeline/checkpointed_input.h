// Stages that return to earlier positions of their input, and stages that buffer items of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "levada/pipeline/stage_iterator.h"

namespace levada::pipeline {

/// An input whose earlier positions can be restored. One thread pulls items; any thread may ask for positions.
class CheckpointedInput {
 public:
  CheckpointedInput(GraphContextPtr context, int stage, StagePtr input)
      : context_(std::move(context)), stage_(stage), input_(std::move(input)), history_(context_->snapshot_every) {}

  /// Marks the first position. Otherwise next() and at() do so. Must be called before other threads call at().
  void begin() const;
  std::optional<Item> next();
  /// Drops the next items, as Iterator::skip() does. Must be called on the thread that pulls.
  std::int64_t skip(std::int64_t items);
  /// Returns the number of items pulled or skipped.
  std::int64_t position() const { return position_; }

  /// The entries of a cursor, and the number of items to drop after restoring it.
  struct Point {
    std::vector<Tree> entries;
    std::int64_t skip = 0;
  };
  Point at(std::int64_t position) const;
  void keep_from(std::int64_t position) { history_.keep_from(position); }

  /// Restores `position`, which is `skip` items after `entries`. Throws InvalidArgument.
  void restore(std::span<const Tree> entries, std::int64_t position, std::int64_t skip);
  void conclude() {
    if (input_) input_->conclude();
  }
  void release() { input_.reset(); }

 private:
  Cursor save() const { return input_->save(); }
  void skip_restored();

  GraphContextPtr context_;
  int stage_;
  StagePtr input_;
  mutable SnapshotLog history_;
  std::int64_t position_ = 0, skip_ = 0;
  mutable bool begun_ = false;
};

/// A stage that buffers items. `BufferedItem` is the stage's representation of a buffered item; its `position` is the
/// item's index in the input. The cursor lists these positions. Saving them takes time proportional to the size of the
/// buffer, so the stage saves them only occasionally, and its cursor adds the number of output items to skip after the
/// last save.
template <typename BufferedItem>
class HoldingIterator : public StageIterator {
 public:
  void conclude() override { source_.conclude(); }

 protected:
  HoldingIterator(GraphContextPtr context, int stage, StagePtr input)
      : StageIterator(context, stage, nullptr),
        source_(context, stage, std::move(input)),
        history_(context->snapshot_every) {}

  /// Returns the stage's next item; nothing at the end.
  virtual std::optional<Item> make_one() = 0;
  /// Skips the next item. Returns false at the end.
  virtual bool skip_one() { return make_one().has_value(); }
  virtual BufferedItem hold(Item item, std::int64_t position) = 0;
  /// Returns the maximum number of items that the stage buffers.
  virtual std::int64_t capacity() const = 0;
  /// Returns whether held_ and save_own() currently capture the whole state.
  virtual bool can_mark() const { return true; }
  virtual void save_own(Fields&) const {}
  virtual void restore_own(const CursorFields&) {}
  /// Called after restore_own(), once held_ has been refilled.
  virtual void finish_restore() {}

  std::optional<Item> pull_tracked() {
    return pulled([this] { return source_.next(); });
  }
  /// Returns whether the buffer may hold items, now or once it is refilled.
  bool has_begun() const { return begun_ || restored_; }
  /// Skips items of the input, for a stage that yields one item per input and has not begun.
  std::int64_t skip_tracked(std::int64_t items) {
    const auto passed = source_.skip(items);
    num_inputs_ += passed;
    return passed;
  }
  void release() override {
    held_.clear();
    source_.release();
  }

  std::vector<BufferedItem> held_;

 private:
  std::optional<Item> make() final {
    if (restored_) refill();
    must_mark_ = history_.due() || must_mark_;
    if (must_mark_ && can_mark()) mark();
    begun_ = true;
    auto item = make_one();
    made_ += item.has_value();
    return item;
  }

  /// Returns each held item's distance from the number of inputs, in four bytes each, and the position of the oldest
  /// item.
  std::pair<Bytes, std::int64_t> held_positions() const {
    Bytes packed(held_.size() * sizeof(std::uint32_t));
    auto* to = packed.data();
    auto oldest = num_inputs_;
    for (const auto& held : held_) {
      oldest = std::min(oldest, held.position);
      const auto behind = static_cast<std::uint32_t>(num_inputs_ - held.position);
      std::memcpy(to, &behind, sizeof(behind));
      to += sizeof(behind);
    }
    return {std::move(packed), oldest};
  }

  void mark() {
    must_mark_ = false;
    const auto begin = Clock::now();
    auto held = held_positions();
    if (num_inputs_ - held.second > std::numeric_limits<std::uint32_t>::max()) return;
    source_.keep_from(held.second);
    history_.keep_from(made_);
    const auto save = [&] { return Tree::list(snapshot(std::move(held))); };
    context_->count_snapshot(history_.mark(made_, save, begin));
  }

  std::vector<Tree> snapshot(std::pair<Bytes, std::int64_t> positions) const {
    auto& [held, from] = positions;
    auto point = source_.at(from);
    Fields fields = {{"stage", stage().name},
                     {"from", from},
                     {"skip", point.skip},
                     {"num_inputs", num_inputs_},
                     {"held", std::move(held)}};
    save_own(fields);
    point.entries.push_back(Tree::dict(std::move(fields)));
    return std::move(point.entries);
  }

  SavedState saved() const final {
    if (restored_) return {list_in_cursor(restored_->cursor, stage().name), {{"skip", restored_->skip}}};
    if (!begun_) return {snapshot(held_positions()), {{"skip", 0}}};
    auto point = history_.at(made_);
    return {list_in_cursor(point.cursor, stage().name), {{"skip", point.skip}}};
  }

  // Validates the cursor; the first next() fills the buffer.
  void restore_saved(const CursorFields& own, std::span<const Tree> before) final {
    if (before.empty()) own.fail("nothing comes before it");
    const CursorFields there(before.back(), stage().name);
    held_places_.clear();
    const auto& held = there.bytes("held");
    const auto from = there.count("from"), num_inputs = there.count("num_inputs");
    if (from > num_inputs || held.size() % 4 != 0 || held.size() / 4 > static_cast<std::uint64_t>(capacity())) {
      own.fail("its buffer holds more items than this pipeline's, or is damaged");
    }
    ByteReader reader(held);
    while (reader.remaining() > 0) {
      const auto position = num_inputs - std::int64_t{reader.get<std::uint32_t>()};
      const bool is_new = held_places_.emplace(position, held_places_.size()).second;
      if (!is_new || position < from || position >= num_inputs)
        own.fail("its buffer names an item twice, or one that was not read");
    }
    source_.restore(before.first(before.size() - 1), from, there.count("skip"));
    restore_own(there);
    restored_ = SnapshotLog::Point{Tree::list({before.begin(), before.end()}), own.count("skip")};
    num_inputs_ = from;
    inputs_then_ = num_inputs;
  }

  void refill() {
    held_.resize(held_places_.size());
    while (num_inputs_ < inputs_then_) {
      auto item = pull_tracked();
      if (!item) guarded([&] { throw_past_end(num_inputs_); });
      const auto place = held_places_.find(num_inputs_ - 1);
      if (place == held_places_.end()) continue;
      held_[place->second] = guarded([&] { return hold(*std::move(item), num_inputs_ - 1); });
    }
    held_places_.clear();
    guarded([&] { finish_restore(); });
    for (; made_ < restored_->skip; ++made_) {
      if (!skip_one()) guarded([&] { throw_past_end(made_); });
    }
    history_.mark(0, [&] { return std::move(restored_->cursor); });
    restored_.reset();
  }

  CheckpointedInput source_;
  std::int64_t made_ = 0;
  SnapshotLog history_;  ///< positions among the items that this stage yields
  bool begun_ = false;
  bool must_mark_ = true;

  std::optional<SnapshotLog::Point> restored_;  ///< set until the buffer is refilled
  std::unordered_map<std::int64_t, std::size_t> held_places_;
  std::int64_t inputs_then_ = 0;
};

}  // namespace levada::pipeline
