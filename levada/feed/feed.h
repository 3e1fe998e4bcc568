// One reader loads; every rank of the mesh receives exactly what its layout places on it, step after step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "levada/base/metric.h"
#include "levada/base/trace.h"
#include "levada/engine/collect.h"
#include "levada/engine/engine.h"
#include "levada/feed/loss.h"
#include "levada/feed/protocol.h"
#include "levada/feed/tail.h"
#include "levada/plan/delay_queue.h"
#include "levada/plan/plan.h"
#include "levada/plan/step_balance.h"
#include "levada/plan/step_plan.h"
#include "levada/sources/source.h"
#include "levada/transfer/inbox.h"
#include "levada/tree/tree.h"

namespace levada {

struct FeedOptions {
  std::int64_t batch = 1;        ///< samples a dp rank and step
  Divide divide = Divide::deal;  ///< whether the source is asked for each dp coordinate's batch or for all at once
  Tail tail = Tail::drop;        ///< of a last round that the data does not fill
  /// Divides the samples of each step over dp by their work, perhaps over several micro-batches: each next() gives one.
  /// Takes a source that knows sizes(), whole batches dealt, and a tail that is not padded.
  std::optional<Balance> balance = {};
  std::int64_t first_sample = 0;            ///< where in the source to begin
  std::vector<DelayedSample> delayed = {};  ///< samples before that, which waited for a later step: of a StepCursor
  std::optional<std::int64_t> steps;        ///< at most so many
  Readers readers;
  /// Batches a rank may be behind its reader. 0: two more than the mesh's pp. Below pp is refused: pipeline stages may
  /// be a whole schedule apart.
  int depth = 0;
  /// Whether this rank, if it reads, does so on a thread of the feed's own, before its caller asks; else inside next().
  bool ahead = true;
  /// Of one wait, the one at the start included. As long as a peer may be saving a checkpoint or compiling.
  Duration timeout = std::chrono::minutes(30);
  Duration remind_after = Reminder::after;  ///< of one wait: as Reminder does
  Access access = Access::read_only;
  TraceLog* trace = nullptr;  ///< records what this rank does and waits for; outlives the feed
  /// Called again and again, on the caller's thread, while the constructor, next() or close() wait; what it throws ends
  /// the wait, and after next() or close() the feed can be used on. May be empty.
  std::function<void()> poll = {};
  /// Which pass this is, as an error names it: the same on all ranks, so that passes of different feeds never mix.
  std::string name = {};
};

/// One step's share of one rank. Its tensors are views of shared memory that is given back when the last of them goes.
struct Batch {
  std::int64_t step = 0;
  std::int64_t micro = 0, num_micro = 1;  ///< which micro-batch of the step this is, and of how many
  std::int64_t samples = 0;  ///< that this rank's dp coordinate is given, padding not counted: fewer only at the tail
  FlatTree content;
  /// The source's position after this step, on every rank the same; a StepCursor where steps are balanced. Empty where
  /// the step has further micro-batches: a run resumes before or behind a step.
  Bytes cursor;

  Tree tree() const { return unflatten(content); }
  /// As tree().tensor(path).
  Tensor tensor(std::string_view path) const;
};

struct FeedStats {
  std::int64_t batches = 0;
  std::int64_t samples = 0;         ///< padding not counted
  std::uint64_t bytes = 0;          ///< of the tensors this rank was given
  Duration waited{};                ///< blocked in next()
  Duration taking{};                ///< in next(), until the engine had given the batch: waiting, and the engine's work
  std::int64_t copied_batches = 0;  ///< given as copies, because the caller held more than depth
  ReadStats read;                   ///< of this rank's source, if it reads
  std::uint64_t sent_bytes = 0;     ///< of the messages that this rank has published as a reader, each counted once

  /// Returns all of it, each metric with `labels`.
  std::vector<Metric> metrics(const MetricLabels& labels) const;
};

/// A rank's end of the feed. Made and destroyed by all ranks of the engine; next() is called by one thread at a time
/// and does not need the other ranks to call it at the same time. Readers read ahead on a thread of the feed's own,
/// unless FeedOptions::ahead is false. A forked child, which lacks its threads, must neither use nor destroy it.
class Feed {
 public:
  /// Collective: ranks meet in the order in which they make feeds on `engine`. `source` is used on ranks that read and
  /// may be null on others. Throws InvalidArgument, on every rank alike, where options, mesh or layout do not fit, or
  /// where they, the name or the readers' sources differ between ranks; Timeout, after which the other ranks' start, or
  /// their feed if it has started, throws EngineError.
  Feed(std::shared_ptr<Engine> engine, const Mesh& mesh, const Layout& layout, std::shared_ptr<Source> source,
       const FeedOptions& options);
  /// close(), without its exceptions; with the reason "an exception" where one leaves the feed's scope.
  ~Feed();
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  /// The next batch; empty after the last, at the same step on every rank. Throws what a reader threw, on every rank at
  /// the step where it happened; Timeout, which explains which rank waits for which; PeerLost, also where another rank
  /// has left the feed without this step.
  std::optional<Batch> next();

  /// Receives the content of the batch that next() will return, if that has arrived; next() then returns it without its
  /// content. Returns nothing where none has arrived, where one was received ahead already, and where next() will not
  /// return a batch. Never blocks, never reads a batch that nobody has asked for, and changes neither end() nor
  /// stats(); what goes wrong is thrown by next(). Called by next()'s thread.
  std::optional<FlatTree> receive_ahead();

  /// Asks all ranks to stop soon, at one step; next() goes on until then. Not collective: one rank is enough. Any
  /// thread. Where the lead has no room for the word, it is sent by the next call of next().
  void request_stop();

  /// Leaves early. Ranks that leave at the same step do so in order; next() throws PeerLost on any that asks for more.
  /// `reason`: the exception that makes this rank leave, for the others' error; with one it is an error too where the
  /// feed ends at this very step. Does nothing after the end. Waits no longer than the timeout, for room to say so.
  /// Throws PeerLost where another rank has left for a reason of its own and this one has none.
  void close(std::string_view reason = {});

  /// Blocks until another rank's end keeps this one from finishing the pass while its caller is in no call of the feed,
  /// which would throw. Returns nothing once the pass has ended here: by next(), which has returned empty or thrown, or
  /// by close(). Looks ten times a second, and costs the other calls nothing. One thread at a time, beside next()'s.
  std::optional<FeedLoss> await_loss();

  /// Empty until next() has returned empty or thrown, or close() has returned.
  const std::optional<FeedEnd>& end() const;
  /// Any thread may call, also while next() waits; `waited` then includes the wait so far.
  FeedStats stats() const;
  /// What the steps come to that this rank has planned so far, as a reader of balanced steps; else empty.
  BalanceSeries balance() const;
  /// Whether this rank reads.
  bool is_reader() const;
  /// The group of this pass alone, on whose board ranks explain their waits.
  const std::shared_ptr<Engine>& group() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace levada
