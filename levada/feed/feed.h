// Readers load the data; every rank of the mesh receives exactly what its layout places on it, step after step.
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
  std::int64_t batch = 1;        ///< samples per dp rank per step
  Divide divide = Divide::deal;  ///< whether the batches of dp coordinates are read separately, or all at once
  Tail tail = Tail::drop;        ///< treatment of a last round that the data does not fill
  /// Divides the samples of each step over dp by their work, possibly over several micro-batches; each next() then
  /// returns one micro-batch. Requires a source that knows sizes(), Divide::deal, and a tail other than Tail::pad.
  std::optional<Balance> balance = {};
  std::int64_t first_sample = 0;            ///< first sample to read
  std::vector<DelayedSample> delayed = {};  ///< earlier samples that still wait for a step, from a StepCursor
  std::optional<std::int64_t> steps;        ///< maximum number of steps
  Readers readers;
  /// Maximum number of batches that a rank may lag behind its reader. 0: pp + 2. Must be at least pp, because pipeline
  /// stages may be a whole schedule apart.
  int depth = 0;
  /// Whether a reader rank reads ahead, on a thread of the feed. If false, it reads inside next().
  bool ahead = true;
  /// Limit for each wait, including the wait at the start. Should exceed the time that a peer may need to save a
  /// checkpoint or to compile.
  Duration timeout = std::chrono::minutes(30);
  Duration remind_after = Reminder::after;  ///< when to print the first reminder during a wait, as in Reminder
  Access access = Access::read_only;
  TraceLog* trace = nullptr;  ///< records what this rank does and waits for; must outlive the feed
  /// Called repeatedly on the caller's thread while the constructor, next() or close() waits. An exception from it ends
  /// the wait. If next() was waiting, the feed stays usable; if close() was, the feed ends on all ranks. May be empty.
  std::function<void()> poll = {};
  /// Names this pass in errors. Must be the same on all ranks, so that passes of different feeds never mix.
  std::string name = {};
};

/// One rank's share of a step. Its tensors are views of shared memory, which is released with the last of them.
struct Batch {
  std::int64_t step = 0;
  std::int64_t micro = 0, num_micro = 1;  ///< index of the micro-batch in its step, and their number
  std::int64_t samples = 0;  ///< samples of this rank's dp coordinate, without padding; fewer only in the tail
  /// Number of context-parallel ranks that share the samples, and the index of this rank, and thus of its part, among
  /// them. 1 and 0 without Balance::max_cp.
  int cp_size = 1, cp_rank = 0;
  /// Totals of the step up to this micro-batch, over all data-parallel ranks, as StepCounter counts. The last
  /// micro-batch has the totals of the whole step. Empty if several ranks read.
  std::optional<StepTotals> totals;
  FlatTree content;
  /// The source's position after this step, the same on every rank; a StepCursor if steps are balanced. Empty unless
  /// this is the last micro-batch of its step: a run can only resume between steps.
  Bytes cursor;

  Tree tree() const { return unflatten(content); }
  /// Equivalent to tree().tensor(path).
  Tensor tensor(std::string_view path) const;
};

struct FeedStats {
  std::int64_t batches = 0;
  std::int64_t samples = 0;  ///< without padding; samples that context-parallel ranks share count at the first of them
  std::uint64_t bytes = 0;   ///< size of the received tensors
  Duration waited{};         ///< blocked in next()
  Duration taking{};         ///< time in next() until the engine had the batch: waiting plus the engine's work
  std::int64_t copied_batches = 0;  ///< batches returned as copies because the caller held more than depth
  ReadStats read;                   ///< counters of this rank's source, if it reads
  std::uint64_t sent_bytes = 0;     ///< size of the messages that this rank published as a reader, each counted once

  /// Returns all counters as metrics with these labels.
  std::vector<Metric> metrics(const MetricLabels& labels) const;
};

/// One rank's endpoint of a feed. All ranks of the engine create and destroy it together. One thread at a time may call
/// next(), and ranks need not call it at the same time. Readers read ahead on a thread of the feed, unless
/// FeedOptions::ahead is false. A forked child lacks the feed's threads and must neither use nor destroy the feed.
class Feed {
 public:
  /// Collective: ranks match feeds by the order in which they create them on `engine`. `source` is used only on ranks
  /// that read and may be null on others. Throws InvalidArgument on every rank if options, mesh and layout do not fit,
  /// or if they, the name or the readers' sources differ between ranks. Throws Timeout; the constructor then throws
  /// EngineError on the other ranks, or their feed does if it has already started.
  Feed(std::shared_ptr<Engine> engine, const Mesh& mesh, const Layout& layout, std::shared_ptr<Source> source,
       const FeedOptions& options);
  /// Calls close() and swallows its exceptions. During stack unwinding, the reason is "an exception".
  ~Feed();
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  /// Returns the next batch, or nothing after the last one. All ranks end at the same step. Throws a reader's exception
  /// on every rank, at the step where it happened; Timeout, which explains which rank waits for which; PeerLost, also
  /// if another rank has left the feed before this step.
  std::optional<Batch> next();

  /// Receives the content of the batch that next() will return, if it has arrived; next() then returns that batch
  /// without its content. Returns nothing if none has arrived, if one has already been received ahead, or if next()
  /// will not return a batch. Never blocks, never triggers a read, and changes neither end() nor stats(). Errors are
  /// thrown by next(). Must be called on next()'s thread.
  std::optional<FlatTree> receive_ahead();

  /// Asks all ranks to stop soon, at the same step; next() returns batches until then. Not collective: one rank is
  /// enough. Any thread may call. If the request cannot be sent now, the next call of next() sends it.
  void request_stop();

  /// Leaves early. Ranks that leave at the same step see no error; on a rank that asks for another batch, next() throws
  /// PeerLost. `reason`: the exception that makes this rank leave, for the other ranks' error messages. Leaving with a
  /// reason is an error on the other ranks even if the feed ends at exactly this step. Does nothing after the end.
  /// Waits at most the timeout for room to send the notice; if that fails, the feed ends on all ranks. Throws PeerLost
  /// if another rank has left with a reason and this one has none.
  void close(std::string_view reason = {});

  /// Blocks until another rank's departure or failure prevents this rank from finishing the pass while its caller is
  /// outside the feed's calls, which would throw. Returns nothing once the pass has ended on this rank, because next()
  /// returned empty or threw, or because of close(). Polls ten times a second and does not slow down other calls. One
  /// thread at a time may call, concurrently with next()'s.
  std::optional<FeedLoss> await_loss();

  /// Returns the end of the pass on this rank; empty until next() has returned empty or thrown, or close() has
  /// returned.
  const std::optional<FeedEnd>& end() const;
  /// Returns the counters so far. Any thread may call, even while next() waits; `waited` then includes that wait so
  /// far.
  FeedStats stats() const;
  /// Returns the balance of the steps that this rank has planned so far; empty unless it reads balanced steps.
  BalanceSeries balance() const;
  /// Returns whether this rank reads.
  bool is_reader() const;
  /// Returns the group created for this pass, on whose board ranks explain their waits.
  const std::shared_ptr<Engine>& group() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace levada
