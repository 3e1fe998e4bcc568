// Opens the iterators of a graph's stages.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "levada/pipeline/stage_iterator.h"

namespace levada::pipeline {

class ForkQueue;

/// Opens the iterators of one pass over a graph, starting at its end.
class GraphBuilder {
 public:
  using Instead = std::map<int, IteratorPtr>;

  GraphBuilder(GraphContextPtr context, const OpenContext& open_context, Instead instead)
      : context_(std::move(context)), open_context_(open_context), instead_(std::move(instead)) {}

  /// Opens the iterators up to this stage, ready to be restored or started.
  StagePtr open_end(int stage);

  // For make_stage().

  const GraphContextPtr& context() const { return context_; }
  const OpenContext& open_context() const { return open_context_; }
  bool is_given(int stage) const { return instead_.contains(stage); }
  /// Opens the iterator of a stage, from which thread number `thread` pulls items.
  StagePtr open(int stage, int thread);
  StagePtr open_source(int stage, Partition partition);
  /// Returns the shared state of a fork's branches.
  std::shared_ptr<ForkQueue> fork(int stage);
  /// Returns a new thread number. The caller has 0; each Prefetch gets one, and the branches of each fork share one.
  int new_thread() { return ++threads_; }
  const std::shared_ptr<PendingThreads>& pending_threads() const { return pending_threads_; }

 private:
  GraphContextPtr context_;
  OpenContext open_context_;
  Instead instead_;
  std::map<int, std::shared_ptr<ForkQueue>> forks_;
  std::vector<std::shared_ptr<ForkQueue>> made_forks_;  ///< inputs first
  std::shared_ptr<PendingThreads> pending_threads_ = std::make_shared<PendingThreads>();
  int threads_ = 0;
};

/// A stage that is about to be opened, and the number of the thread that pulls from it.
struct StagePlace {
  GraphBuilder& builder;
  int stage;
  int thread;

  int before() const { return builder.context()->stage(stage).inputs.front(); }
  StagePtr input() const { return builder.open(before(), thread); }
  std::vector<StagePtr> inputs() const;
  template <typename T, typename... Arguments>
  std::unique_ptr<T> make(Arguments&&... arguments) const {
    auto made = std::make_unique<T>(builder.context(), stage, std::forward<Arguments>(arguments)...);
    made->set_threads(builder.pending_threads());
    return made;
  }
};

// Each overload opens the iterator of one kind of stage.
StagePtr make_stage(const Source& source, const StagePlace& at);
StagePtr make_stage(const Map& map, const StagePlace& at);
StagePtr make_stage(const Filter& filter, const StagePlace& at);
StagePtr make_stage(const FlatMap& flat_map, const StagePlace& at);
StagePtr make_stage(const Batch& batch, const StagePlace& at);
StagePtr make_stage(const BucketBatch& batch, const StagePlace& at);
StagePtr make_stage(const Unbatch& unbatch, const StagePlace& at);
StagePtr make_stage(const Pack& pack, const StagePlace& at);
StagePtr make_stage(const Shuffle& shuffle, const StagePlace& at);
StagePtr make_stage(const Shard& shard, const StagePlace& at);
StagePtr make_stage(const Take& take, const StagePlace& at);
StagePtr make_stage(const Skip& skip, const StagePlace& at);
StagePtr make_stage(const Repeat& repeat, const StagePlace& at);
StagePtr make_stage(const Zip& zip, const StagePlace& at);
StagePtr make_stage(const Concat& concat, const StagePlace& at);
StagePtr make_stage(const Interleave& interleave, const StagePlace& at);
StagePtr make_stage(const Cache& cache, const StagePlace& at);
StagePtr make_stage(const Fork& fork, const StagePlace& at);
StagePtr make_stage(const Branch& branch, const StagePlace& at);
StagePtr make_stage(const Prefetch& prefetch, const StagePlace& at);
StagePtr make_stage(const Dispatch& dispatch, const StagePlace& at);
StagePtr make_stage(const FullSync& full_sync, const StagePlace& at);
StagePtr make_stage(const Transform& transform, const StagePlace& at);

/// Returns the seed of a random stage: derived from `given` and the epoch, or else from the pipeline's seed.
std::uint64_t seed_of(const StagePlace& at, std::optional<std::uint64_t> given);

/// Opens a Map with threads.
StagePtr make_threaded_map(const StagePlace& at);
/// Opens a stage that yields its input unchanged.
StagePtr make_identity(const StagePlace& at, StagePtr input);
/// Opens a stage that another process runs: its items are not counted, and its failures already name their stage.
StagePtr make_given(const StagePlace& at, IteratorPtr iterator);
/// Opens a stage whose items and failures are those of `iterator`.
StagePtr make_foreign(const StagePlace& at, IteratorPtr iterator);

std::shared_ptr<ForkQueue> make_fork(const StagePlace& at);
/// Called once all stages have been restored, for a fork before the forks that feed it.
void finish_restore(ForkQueue& fork);

}  // namespace levada::pipeline
