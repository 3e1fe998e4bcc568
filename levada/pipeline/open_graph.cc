#include "levada/pipeline/open_graph.h"

#include <fmt/format.h>

#include "levada/base/error.h"
#include "levada/pipeline/graph_builder.h"
#include "levada/pipeline/open_context.h"

namespace levada::pipeline {

StagePtr GraphBuilder::open_end(int stage) {
  auto iterator = open(stage, 0);
  StageIterator::Starts forks;
  for (auto fork = made_forks_.rbegin(); fork != made_forks_.rend(); ++fork) {
    forks.emplace_back([weak = std::weak_ptr(*fork)] {
      if (const auto forked = weak.lock()) finish_restore(*forked);
    });
  }
  iterator->set_end(std::move(forks));
  return iterator;
}

StagePtr GraphBuilder::open(int stage, int thread) {
  const StagePlace at{*this, stage, thread};
  if (const auto given = instead_.find(stage); given != instead_.end()) return make_given(at, std::move(given->second));
  return std::visit([&](const auto& operation) { return make_stage(operation, at); }, context_->stage(stage).operation);
}

StagePtr GraphBuilder::open_source(int stage, Partition partition) {
  try {
    const auto& source = std::get<Source>(context_->stage(stage).operation);
    return make_foreign({*this, stage, 0}, source.items->open(open_context_, partition));
  } catch (const std::exception&) {
    throw_as_failed(*context_, stage, 0);
  }
}

std::shared_ptr<ForkQueue> GraphBuilder::fork(int stage) {
  auto& forked = forks_[stage];
  if (forked == nullptr) {
    forked = make_fork({*this, stage, new_thread()});
    made_forks_.push_back(forked);
  }
  return forked;
}

std::vector<StagePtr> StagePlace::inputs() const {
  std::vector<StagePtr> inputs;
  for (const int input : builder.context()->stage(stage).inputs) inputs.push_back(builder.open(input, thread));
  return inputs;
}

std::uint64_t seed_of(const StagePlace& at, std::optional<std::uint64_t> given) {
  const auto& context = *at.builder.context();
  const auto& open_context = at.builder.open_context();
  if (given) return stage_seed(*given, std::to_string(open_context.epoch));
  const bool shared = draws_alike(context.graph, at.stage);
  return stage_seed(shared ? open_context.shared_seed : open_context.own_seed, context.stage(at.stage).name);
}

StagePtr make_stage(const Source&, const StagePlace& at) {
  return at.builder.open_source(at.stage, {});
}

namespace {

/// The end of a graph, as the caller sees it.
class RootIterator final : public Iterator {
 public:
  RootIterator(GraphContextPtr context, StagePtr end) : context_(std::move(context)), end_(std::move(end)) {}
  ~RootIterator() override {
    context_->threads.end();  // before waiting for its threads
    end_.reset();
  }
  RootIterator(const RootIterator&) = delete;
  RootIterator& operator=(const RootIterator&) = delete;

  std::optional<Item> next() override { return end_->next(); }
  std::int64_t skip(std::int64_t items) override { return end_->skip(items); }
  Cursor save() const override { return end_->save(); }
  void restore(const Cursor& cursor) override { end_->restore(cursor); }

 private:
  GraphContextPtr context_;
  StagePtr end_;
};

}  // namespace

IteratorPtr open(const Graph& graph, int end, const RuntimeOptions& runtime_options,
                 std::map<int, IteratorPtr> instead) {
  if (end < 0 || end > graph.end() || runtime_options.counts.size() < graph.stages().size()) {
    throw InvalidArgument(fmt::format("stage {} of {} with {} counters cannot be opened", end, graph.stages().size(),
                                      runtime_options.counts.size()));
  }
  const auto context = std::make_shared<GraphContext>(graph, runtime_options);
  GraphBuilder builder(context, runtime_options.open_context, std::move(instead));
  return std::make_unique<RootIterator>(context, builder.open_end(end));
}

}  // namespace levada::pipeline
