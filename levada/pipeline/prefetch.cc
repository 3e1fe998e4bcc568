#include <thread>

#include "levada/base/error.h"
#include "levada/base/threads.h"
#include "levada/pipeline/checkpointed_input.h"
#include "levada/pipeline/graph_builder.h"

namespace levada::pipeline {
namespace {

/// The interval between checks for the end of a pause.
constexpr auto pause_interval = std::chrono::milliseconds(10);

/// A ring between the thread that makes items ahead and the one that consumes them. The consumer sleeps until there is
/// an item, the producer until half of the ring is free, so that not every item wakes it.
class PrefetchIterator final : public StageIterator {
 public:
  PrefetchIterator(GraphContextPtr context, int stage, StagePtr input)
      : StageIterator(context, stage, nullptr),
        source_(context, stage, std::move(input)),
        depth_(operation<Prefetch>().depth) {}
  ~PrefetchIterator() override { stop(); }
  PrefetchIterator(const PrefetchIterator&) = delete;
  PrefetchIterator& operator=(const PrefetchIterator&) = delete;

  void start() {
    ring_.resize(static_cast<std::size_t>(depth_));
    source_.begin();
    context_->threads.add();
    try {
      thread_ = start_thread("prefetching", [this] { context_->threads.run(ahead_, [this] { run(); }); });
    } catch (...) {
      context_->threads.run(ahead_, [] {});
      throw;
    }
  }
  std::weak_ptr<PrefetchIterator*> self() const { return self_; }
  void conclude() override {
    stop();
    source_.conclude();
  }

 private:
  struct Slot {
    std::optional<Item> item;
    std::exception_ptr thrown;
  };

  std::optional<Item> make() override {
    if (popped_ == pushed_)
      waited([&] { return context_->threads.wait(consumer_, [this] { return popped_ != pushed_; }); });
    auto& slot = slot_of(popped_);
    auto item = std::move(slot.item);
    slot.item.reset();
    const auto thrown = std::move(slot.thrown);
    ++popped_;
    if (2 * (pushed_ - popped_) <= depth_) context_->threads.wake(producer_);
    if (thrown) std::rethrow_exception(thrown);
    num_inputs_ += item.has_value();
    source_.keep_from(num_inputs_);
    return item;
  }

  std::int64_t skip_impl(std::int64_t items) override {
    if (thread_.joinable()) return make_and_drop(items);
    const auto passed = source_.skip(items);
    num_inputs_ += passed;
    return passed;
  }

  void run() {
    const auto has_room = [this] { return pushed_ - popped_ < depth_; };
    for (bool more = true; more && !ahead_.stopped();) {
      if (!has_room()) context_->threads.wait(producer_, has_room);
      if (is_paused()) {
        std::this_thread::sleep_for(pause_interval);
        continue;
      }
      more = fill(slot_of(pushed_));
      ++pushed_;
      context_->threads.wake(consumer_);
    }
  }

  bool is_paused() const { return context_->paused != nullptr && *context_->paused; }

  bool fill(Slot& slot) {
    try {
      slot.item = source_.next();
    } catch (const Stopped&) {
      throw;
    } catch (...) {
      slot.thrown = std::current_exception();
    }
    return slot.item.has_value();
  }

  void stop() {
    if (!thread_.joinable()) return;
    context_->threads.stop(ahead_, [this] { thread_.join(); });
  }

  Slot& slot_of(std::int64_t number) { return ring_[static_cast<std::size_t>(number % depth_)]; }

  SavedState saved() const override {
    auto point = source_.at(num_inputs_);
    return {std::move(point.entries), {{"skip", point.skip}}};
  }
  void restore_saved(const CursorFields& own, std::span<const Tree> before) override {
    source_.restore(before, num_inputs_, own.count("skip"));
  }
  void release() override {
    self_.reset();
    stop();
    source_.release();
  }

  std::shared_ptr<PrefetchIterator*> self_ = std::make_shared<PrefetchIterator*>(this);
  CheckpointedInput source_;
  PrefetchThread ahead_;
  WaitPoint consumer_, producer_;
  std::int64_t depth_;
  std::vector<Slot> ring_;
  std::atomic<std::int64_t> pushed_{0}, popped_{0};
  std::thread thread_;
};

}  // namespace

StagePtr make_stage(const Prefetch&, const StagePlace& at) {
  if (!at.builder.context()->prefetches) return make_identity(at, at.input());
  auto iterator = at.make<PrefetchIterator>(at.builder.open(at.before(), at.builder.new_thread()));
  at.builder.pending_threads()->add(at.stage, [weak = iterator->self()] {
    if (const auto self = weak.lock()) (*self)->start();
  });
  return iterator;
}

}  // namespace levada::pipeline
