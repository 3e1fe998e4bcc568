// Stages that buffer no items.
#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/pipeline/graph_builder.h"
#include "levada/pipeline/open_context.h"
#include "levada/pipeline/placement.h"

namespace levada::pipeline {
namespace {

class MapIterator final : public StageIterator {
 public:
  using StageIterator::StageIterator;

 private:
  std::optional<Item> make() override {
    const auto& map = operation<Map>();
    while (auto item = pull()) {
      auto made = attempted(map.on_error, [&] { return map.function(std::move(*item)); });
      if (made) return made;
    }
    return std::nullopt;
  }
  std::int64_t skip_impl(std::int64_t items) override {
    return operation<Map>().on_error == OnError::raise ? skip_input(items) : make_and_drop(items);
  }
};

class FilterIterator final : public StageIterator {
 public:
  using StageIterator::StageIterator;

 private:
  std::optional<Item> make() override {
    const auto& filter = operation<Filter>();
    while (auto item = pull()) {
      const auto keeps = attempted(filter.on_error, [&] { return filter.predicate(*item); });
      if (keeps.value_or(false)) return item;
    }
    return std::nullopt;
  }
};

class TakeIterator final : public StageIterator {
 public:
  using StageIterator::StageIterator;

 private:
  std::optional<Item> make() override {
    if (left() == 0) return std::nullopt;
    return pull();
  }
  std::int64_t skip_impl(std::int64_t items) override { return skip_input(std::min(items, left())); }
  std::int64_t left() const { return std::max<std::int64_t>(operation<Take>().count - num_inputs_, 0); }
};

class SkipIterator final : public StageIterator {
 public:
  using StageIterator::StageIterator;

 private:
  std::optional<Item> make() override {
    if (!skip_first()) return std::nullopt;
    return pull();
  }
  std::int64_t skip_impl(std::int64_t items) override { return skip_first() ? skip_input(items) : 0; }

  /// Returns false if the input ends earlier.
  bool skip_first() {
    const auto count = operation<Skip>().count;
    if (num_inputs_ >= count) return true;
    // A cache keeps only items that were requested from it.
    const bool seeks = !Reachability(context_->graph).follows<Cache>(number_);
    if (seeks) waited([&] { return skip_input(count - num_inputs_); });
    while (!seeks && num_inputs_ < count && pull()) continue;
    return num_inputs_ >= count;
  }
};

class ShardIterator final : public StageIterator {
 public:
  ShardIterator(GraphContextPtr context, int stage, StagePtr input, Partition partition)
      : StageIterator(std::move(context), stage, std::move(input)), partition_(partition) {}

 private:
  std::optional<Item> make() override {
    for (;;) {
      const bool mine = num_inputs_ % partition_.count == partition_.index;
      auto item = pull();
      if (mine || !item) return item;
    }
  }
  std::int64_t skip_impl(std::int64_t items) override {
    if (items == 0) return 0;
    const auto before = (partition_.index + partition_.count - num_inputs_ % partition_.count) % partition_.count;
    const auto passed = skip_input(before + (items - 1) * partition_.count + 1);
    return passed <= before ? 0 : (passed - before - 1) / partition_.count + 1;
  }

  Partition partition_;
};

class Identity final : public StageIterator {
 public:
  using StageIterator::StageIterator;

 private:
  std::optional<Item> make() override { return pull(); }
  std::int64_t skip_impl(std::int64_t items) override { return skip_input(items); }
};

class BatchIterator final : public StageIterator {
 public:
  using StageIterator::StageIterator;

 private:
  std::optional<Item> make() override {
    constexpr std::int64_t at_once = 1024;  // A size that means "all" takes no memory in advance.
    const auto& batch = operation<Batch>();
    std::vector<Item> items;
    items.reserve(static_cast<std::size_t>(std::min(batch.size, at_once)));
    while (static_cast<std::int64_t>(items.size()) < batch.size) {
      auto item = pull();
      if (!item) break;
      items.push_back(std::move(*item));
    }
    const bool whole = static_cast<std::int64_t>(items.size()) == batch.size;
    if (items.empty() || (!whole && batch.drop_last)) return std::nullopt;
    return guarded([&] { return context_->traits.list_of(std::move(items)); });
  }
};

class RepeatIterator final : public StageIterator {
 public:
  RepeatIterator(GraphContextPtr context, int stage, std::function<StagePtr(std::int64_t)> open)
      : StageIterator(std::move(context), stage, nullptr), open_(std::move(open)) {}

  std::int64_t num_passes() const override { return pass_; }

 private:
  std::optional<Item> make() override {
    const auto& times = operation<Repeat>().times;
    for (;;) {
      if (input_ == nullptr) {
        if (times && pass_ >= *times) return std::nullopt;
        input_ = open_(pass_);
      }
      if (auto item = pull()) {
        any_ = true;
        return item;
      }
      input_.reset();
      // An input without items would be reopened forever.
      if (!times && !any_) return std::nullopt;
      any_ = false;
      ++pass_;
    }
  }

  SavedState saved() const override {
    return {input_ == nullptr ? std::vector<Tree>() : input_->entries(), {{"pass", pass_}, {"any", any_}}};
  }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    pass_ = own.count("pass");
    any_ = own.at("any") == Tree(true);
    const auto& times = operation<Repeat>().times;
    if (times && pass_ > *times) own.fail("it is of a pass after the last one");
    if (before.empty()) return;
    input_ = open_(pass_);
    input_->restore_entries(before);
  }

  std::function<StagePtr(std::int64_t)> open_;
  std::int64_t pass_ = 0;
  bool any_ = false;  ///< whether this pass has yielded an item
};

/// Throws InvalidArgument if another process runs `stage` or a stage before it.
void expect_here(const StagePlace& repeat, int stage) {
  const auto& context = *repeat.builder.context();
  if (repeat.builder.is_given(stage)) {
    throw InvalidArgument(
        fmt::format("stage \"{}\" cannot repeat \"{}\", which another process runs; put it before the dispatch",
                    context.stage(repeat.stage).name, context.stage(stage).name));
  }
  for (const int before : context.stage(stage).inputs) expect_here(repeat, before);
}

}  // namespace

StagePtr make_stage(const Map& map, const StagePlace& at) {
  if (map.threads > 0) return make_threaded_map(at);
  return at.make<MapIterator>(at.input());
}
StagePtr make_stage(const Filter&, const StagePlace& at) {
  return at.make<FilterIterator>(at.input());
}
StagePtr make_stage(const Take&, const StagePlace& at) {
  return at.make<TakeIterator>(at.input());
}
StagePtr make_stage(const Skip&, const StagePlace& at) {
  return at.make<SkipIterator>(at.input());
}
StagePtr make_stage(const Batch&, const StagePlace& at) {
  return at.make<BatchIterator>(at.input());
}
StagePtr make_stage(const Dispatch&, const StagePlace& at) {
  return make_identity(at, at.input());
}
StagePtr make_identity(const StagePlace& at, StagePtr input) {
  return at.make<Identity>(std::move(input));
}

StagePtr make_stage(const Shard&, const StagePlace& at) {
  const auto& graph = at.builder.context()->graph;
  const auto partition = partition_of(graph, at.stage, at.builder.open_context());
  if (divides_at_source(graph, at.stage) && !at.builder.is_given(at.before())) {
    return make_identity(at, at.builder.open_source(at.before(), partition));
  }
  return at.make<ShardIterator>(at.input(), partition);
}

// Its passes are separate graphs, each opened when the previous one has ended.
StagePtr make_stage(const Repeat& repeat, const StagePlace& at) {
  expect_here(at, at.before());
  return at.make<RepeatIterator>([context = at.builder.context(), open_context = at.builder.open_context(),
                                  times = repeat.times, before = at.before()](std::int64_t pass) {
    return GraphBuilder(context, further_pass(open_context, pass, times), {}).open_end(before);
  });
}

}  // namespace levada::pipeline
