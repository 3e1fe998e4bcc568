// The base of the iterators of a graph's stages: counts, failures, cursors.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/pipeline/cursors.h"
#include "levada/pipeline/failure.h"
#include "levada/pipeline/graph_threads.h"
#include "levada/pipeline/open_graph.h"

namespace levada::pipeline {

/// The shared state of all iterators of one open(). Its `open_context` is that of the first pass; iterators within a
/// Repeat are opened with the GraphBuilder's.
struct GraphContext : RuntimeOptions {
  GraphContext(Graph all_stages, const RuntimeOptions& options)
      : RuntimeOptions(options), graph(std::move(all_stages)), threads(options.poll) {}

  Graph graph;
  GraphThreads threads;
  std::atomic<Clock::time_point::rep> attend_at{0};  ///< time of the next attend()

  bool must_attend(Clock::time_point now) const {
    return now.time_since_epoch().count() >= attend_at.load(std::memory_order_relaxed);
  }
  /// Polls on the caller's thread; throws Stopped on a thread that is no longer needed. Stages call this periodically
  /// while they make items, so that a stage that never makes another item can be ended.
  void attend(Clock::time_point now);

  /// Adds the time of a snapshot to snapshot_time.
  void count_snapshot(Duration cost) const {
    if (snapshot_time != nullptr && PrefetchThread::current() == nullptr) *snapshot_time += cost.count();
  }
  const Stage& stage(int number) const { return graph.stage(number); }
};
using GraphContextPtr = std::shared_ptr<GraphContext>;

/// Throws the current exception as a StageFailed of that stage; one that already names its stage is thrown unchanged.
[[noreturn]] void throw_as_failed(const GraphContext& context, int stage, std::int64_t item);

inline void count(std::atomic<std::int64_t>& counter, std::int64_t more = 1) {
  // Only the stage's thread writes.
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

class StageIterator;
using StagePtr = std::unique_ptr<StageIterator>;

/// Fields of a cursor's dict.
using Fields = std::vector<std::pair<Key, Tree>>;

/// The cursor of a graph is a list of dicts, one per stage, sources first. The dicts of consecutive iterators are
/// neighbors in the list, so that the cursor of a longer graph is not deeper.
class StageIterator : public Iterator {
 public:
  /// `input` may be null.
  StageIterator(GraphContextPtr context, int stage, StagePtr input);

  std::optional<Item> next() final;
  std::int64_t skip(std::int64_t items) final;
  Cursor save() const final { return Tree::list(entries()); }
  void restore(const Cursor& cursor) final { restore_entries(list_in_cursor(cursor, stage().name)); }

  /// Returns the number of times that the input of an endless Repeat has ended.
  virtual std::int64_t num_passes() const { return 0; }

  /// Called when the stage after this one has ended, possibly before this one has. No more items will be requested. A
  /// cache that has yielded all of its items completes its file. Stages with several inputs forward the call to all of
  /// them.
  virtual void conclude() {
    if (input_) input_->conclude();
  }

  std::vector<Tree> entries() const;
  void restore_entries(std::span<const Tree> entries);

  /// Sets the threads of this pass, which this iterator starts if it has to make items in order to skip them.
  void set_threads(std::shared_ptr<PendingThreads> threads) { pending_threads_ = std::move(threads); }
  using Starts = std::vector<std::function<void()>>;
  /// Makes this the end of its pass. `forks` determine the forks' positions. They are called once all stages have been
  /// restored, or else at the first next() or skip(). The first next() starts all threads at once, so that none waits
  /// for another that has not started.
  void set_end(Starts forks) {
    fork_starts_ = std::move(forks);
    starts_threads_ = true;
  }

 protected:
  /// Returns the next item, or nothing at the end, after which it is not called again.
  virtual std::optional<Item> make() = 0;
  /// Implements skip(). May be called before the threads of the preceding stages have started. A stage that yields one
  /// item per input and keeps no state calls skip_input().
  virtual std::int64_t skip_impl(std::int64_t items) { return make_and_drop(items); }
  std::int64_t make_and_drop(std::int64_t items);
  std::int64_t skip_input(std::int64_t items) {
    const auto passed = input_->skip(items);
    num_inputs_ += passed;
    return passed;
  }
  /// The stage's own fields, and the entries of its inputs.
  struct SavedState {
    std::vector<Tree> before;
    Fields own;
  };
  virtual SavedState saved() const { return {input_->entries(), {}}; }
  virtual void restore_saved(const CursorFields& own, std::span<const Tree> before);
  /// Called at the end, when the inputs are no longer needed.
  virtual void release() { input_.reset(); }

  const Stage& stage() const { return context_->stage(number_); }
  template <typename T>
  const T& operation() const {
    return std::get<T>(stage().operation);
  }

  /// Returns the next item of the only input.
  std::optional<Item> pull() {
    return pulled([this] { return input_->next(); });
  }
  /// Returns an item from `from`, counts it, and counts the time as waited.
  template <typename From>
  std::optional<Item> pulled(const From& from) {
    auto item = waited([&] { return from(); });
    num_inputs_ += item.has_value();
    return item;
  }
  template <typename Wait>
  auto waited(const Wait& wait) {
    if (!timing_) [[likely]]
      return wait();
    const auto begin = Clock::now();
    auto result = wait();
    add_wait(begin, Clock::now());
    return result;
  }

  /// Calls `function`, the stage's own work. Its exceptions become failures of this stage.
  template <typename Function>
  auto guarded(const Function& function) const {
    begin_own_work();
    try {
      return function();
    } catch (const std::exception&) {
      throw_as_failed(*context_, number_, item_number());
    }
  }
  /// Like guarded(), but if `function` throws and failing items are skipped, counts the item and returns nothing.
  /// Throws even then if the exception ends the program.
  template <typename Function>
  auto attempted(OnError on_error, const Function& function) -> std::optional<decltype(function())> {
    begin_own_work();
    try {
      return function();
    } catch (const std::exception& error) {
      if (on_error == OnError::raise || !can_skip(error)) throw_as_failed(*context_, number_, item_number());
      count(counts_->skipped);
      return std::nullopt;
    }
  }

  bool has_failed() const { return failed_; }

  GraphContextPtr context_;
  int number_;
  StageCounts* counts_;
  StagePtr input_;
  std::int64_t num_inputs_ = 0;  ///< items received

 private:
  virtual std::int64_t item_number() const { return num_inputs_ > 0 ? num_inputs_ - 1 : 0; }
  void begin_own_work() const {
    if (context_->at != nullptr) context_->at->store(number_, std::memory_order_relaxed);
  }
  /// Calls `action`. Its exceptions end this iterator.
  template <typename Action>
  auto or_failed(const Action& action) {
    try {
      return action();
    } catch (...) {
      failed_ = true;
      throw;
    }
  }
  void finish_restore();
  std::optional<Item> counted();
  std::optional<Item> timed();
  void add_wait(Clock::time_point begin, Clock::time_point end);
  void record(Clock::time_point begin, Duration spent, bool has_item) const;
  std::int64_t next_gap(Duration spent);

  std::shared_ptr<PendingThreads> pending_threads_;
  Starts fork_starts_;
  bool starts_threads_ = false;
  bool ended_ = false, failed_ = false;
  bool timing_ = false;
  std::int64_t until_timed_ = 1, gap_ = 1;
  std::uint32_t draw_ = 1;
  Duration waited_{};
  std::int64_t waits_ = 0;
};

}  // namespace levada::pipeline
