#include <algorithm>
#include <bit>
#include <limits>
#include <unordered_map>

#include "levada/base/error.h"
#include "levada/corpus/permutation.h"
#include "levada/pipeline/streams.h"
#include "levada/pipeline/tracked_input.h"

namespace levada::pipeline {
namespace {

/// The cursor says of which positions the items in the buffer are, and what is drawn next. As that takes time in
/// proportion to the buffer, it is worked out now and then, and lies some items back.
class ShuffleStream final : public StageStream {
 public:
  ShuffleStream(SettingPtr setting, int stage, StagePtr input, std::uint64_t seed)
      : StageStream(setting, stage, nullptr), source_(setting, stage, std::move(input)), seed_(seed) {}

 private:
  struct Held {
    Item item;
    std::int64_t position;
  };

  std::optional<Item> make() override {
    if (restored_) fill_again();
    if (!std::exchange(begun_, true) || history_.due()) mark();
    auto item = draw_one();
    made_ += item.has_value();
    return item;
  }

  std::optional<Item> draw_one() {
    const auto size = static_cast<std::size_t>(operation<Shuffle>().buffer);
    while (held_.size() < size) {
      auto item = pulled([&] { return source_.next(); });
      if (!item) break;
      held_.push_back({std::move(*item), given_ - 1});
    }
    if (held_.empty()) return std::nullopt;
    auto& drawn = held_[below(held_.size())];
    std::optional<Item> item(std::move(drawn.item));
    if (&drawn != &held_.back()) drawn = std::move(held_.back());
    held_.pop_back();
    return item;
  }

  __extension__ using Wide = unsigned __int128;
  std::size_t below(std::size_t limit) {
    const auto bits = derived_seed(seed_, static_cast<std::uint64_t>(drawn_++));
    return static_cast<std::size_t>((static_cast<Wide>(bits) * limit) >> 64);
  }

  std::int64_t oldest() const {
    auto oldest = given_;
    for (const auto& held : held_) oldest = std::min(oldest, held.position);
    return oldest;
  }

  void mark() {
    const auto from = oldest();
    if (given_ - from > std::numeric_limits<std::uint32_t>::max()) return;
    source_.keep_from(from);
    history_.keep_from(made_);
    history_.mark(made_, [&] { return Tree::list(snapshot(from)); });
  }

  std::vector<Tree> snapshot(std::int64_t from) const {
    auto point = source_.at(from);
    ByteWriter held;
    for (const auto& each : held_) held.put(static_cast<std::uint32_t>(each.position - from));
    point.entries.push_back(Tree::dict({{"stage", stage().name},
                                        {"from", from},
                                        {"skip", point.skip},
                                        {"given", given_},
                                        {"held", std::move(held).take()},
                                        {"seed", std::bit_cast<std::int64_t>(seed_)},
                                        {"drawn", drawn_}}));
    return std::move(point.entries);
  }

  Saved saved() const override {
    if (restored_) return {list_in_cursor(restored_->cursor, stage().name), {{"skip", restored_->skip}}};
    if (!begun_) return {snapshot(oldest()), {{"skip", 0}}};
    auto point = history_.at(made_);
    return {list_in_cursor(point.cursor, stage().name), {{"skip", point.skip}}};
  }

  // What it says is checked here, what it asks for is done with the first item.
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    if (before.empty()) own.refuse("nothing comes before it");
    const CursorFields there(before.back(), stage().name);
    held_positions_.clear();
    const auto& held = there.bytes("held");
    const auto from = there.count("from"), given = there.count("given");
    const auto buffer = operation<Shuffle>().buffer;
    if (from > given || held.size() % 4 != 0 || held.size() / 4 > static_cast<std::uint64_t>(buffer)) {
      own.refuse("its buffer is another");
    }
    ByteReader reader(held);
    while (reader.remaining() > 0) {
      const auto position = from + reader.get<std::uint32_t>();
      const bool is_new = held_positions_.emplace(position, held_positions_.size()).second;
      if (!is_new || position >= given) own.refuse("an item of its buffer is not one");
    }
    source_.restore(before.first(before.size() - 1), from, there.count("skip"));
    seed_ = std::bit_cast<std::uint64_t>(there.integer("seed"));
    drawn_ = there.count("drawn");
    restored_ = CursorHistory::Point{Tree::list({before.begin(), before.end()}), own.count("skip")};
    given_ = from;
    given_then_ = given;
  }

  void fill_again() {
    const auto skip = std::exchange(restored_, std::nullopt)->skip;
    held_.resize(held_positions_.size());
    while (given_ < given_then_) {
      auto item = pulled([&] { return source_.next(); });
      if (!item) fail_short();
      const auto place = held_positions_.find(given_ - 1);
      if (place != held_positions_.end()) held_[place->second] = {std::move(*item), given_ - 1};
    }
    held_positions_.clear();
    for (std::int64_t i = 0; i < skip; ++i) {
      if (!draw_one()) fail_short();
    }
  }

  void fail_short() const {
    guarded([&] { throw InvalidArgument("the state is of further on than there are items"); });
  }

  void release() override {
    held_.clear();
    source_.release();
  }

  TrackedInput source_;
  std::vector<Held> held_;
  std::uint64_t seed_;
  std::int64_t drawn_ = 0, made_ = 0;
  CursorHistory history_;  ///< of its own items
  bool begun_ = false;

  std::optional<CursorHistory::Point> restored_;  ///< until the buffer is filled again
  std::unordered_map<std::int64_t, std::size_t> held_positions_;
  std::int64_t given_then_ = 0;
};

}  // namespace

StagePtr make_shuffle(SettingPtr setting, int stage, StagePtr input, std::uint64_t seed) {
  return std::make_unique<ShuffleStream>(std::move(setting), stage, std::move(input), seed);
}

}  // namespace levada::pipeline
