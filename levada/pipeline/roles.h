// The processes of a pipeline: what the dispatching process and the workers do until they are told to end, and the
// consumer's end of it. All over an Engine whose ranks are: 0 the consumer, then the dispatching process where the
// placement has one, then the workers.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/engine/collect.h"
#include "levada/engine/engine.h"
#include "levada/pipeline/open_graph.h"
#include "levada/pipeline/placement.h"
#include "levada/pipeline/show.h"

namespace levada::pipeline {

struct ProcessOptions {
  int workers = 0;
  /// Items that wait for one worker, and items of one worker that wait for the consumer. Small items that are quickly
  /// made travel, and count, many as one: what takes some 150 us to make. With 0 each item travels alone, one waits.
  std::int64_t worker_prefetch = 10;
  std::int64_t main_prefetch = 10;
  std::size_t prefetch_bytes = std::size_t{64} << 20;  ///< bound on either in bytes, beyond one item
  /// Items after which a process saves where it stands; a state may take making so many again. 0: as often as takes
  /// one percent of the time.
  std::int64_t snapshot_every = 0;
  bool ordered = false;  ///< the order of a single process, whatever the stages
  std::uint64_t seed = 0;
  int rank = 0, ranks = 1;                      ///< of the job that the consumer is part of
  Duration timeout = std::chrono::minutes(30);  ///< for an item, or an answer
  Duration remind_after = Reminder::after;      ///< of one such wait in the consumer: as Reminder does
  bool record = false;                          ///< what each process does when, for traces()
};

/// A pipeline that one process runs, and how it came to it. `engine` is null without workers.
struct Process {
  std::shared_ptr<Engine> engine;
  Graph graph;
  const ItemTraits& traits;
  ProcessOptions options;
  std::string name;                   ///< "worker 0 (process 4242)"
  std::shared_ptr<Engine> all_ranks;  ///< for FullSync, in the consumer
  /// Called before each epoch, to seed what the language draws at random from.
  std::function<void(const OpenContext&)> begin_epoch = {};
  /// Called now and then while waiting; what it throws ends the wait.
  std::function<void()> poll = {};
};

/// The dispatching process or a worker, by its rank: answers each order once, and returns when told to end, or when the
/// consumer leaves. What goes wrong in the pipeline goes to the consumer. Throws PeerLost once a process is lost.
void serve(const Process& process);

class ConsumerEndpoint;

/// The consumer. One thread at a time, but that stats(), traces(), paused() and one of pause() and resume() may be
/// called on other threads meanwhile. A forked child, which lacks its threads, must neither use nor destroy it.
class Consumer {
 public:
  explicit Consumer(Process process);
  Consumer(const Consumer&) = delete;
  Consumer& operator=(const Consumer&) = delete;
  /// shutdown(), without waiting long.
  ~Consumer();

  /// Begins epoch `epoch`, at its first item or at `cursor`, which may be of a run with other workers where the
  /// placement is one-to-one. What is under way of an earlier epoch is dropped; limit and pause are over. Throws
  /// InvalidArgument for a cursor of something else.
  void reset(std::int64_t epoch, const std::optional<Cursor>& cursor = {}) { begin(epoch, cursor, 0); }
  /// Begins epoch `epoch` behind its first `items`, which are not made where the stages are one-to-one and the source
  /// can seek. Throws InvalidArgument where there are fewer; where workers make them, next() does.
  void reset_behind(std::int64_t epoch, std::int64_t items) { begin(epoch, {}, items); }
  /// The next item; empty at the end of the epoch, at a limit, and while paused. Items come in the order of those that
  /// they were made from, whichever worker made them. Throws StageFailed in the failed item's place;
  /// PeerLost, naming the process, within a second of its end; Timeout, saying which process is in which stage since
  /// when.
  std::optional<Item> next();
  /// Whether next() was empty at the end of the epoch, rather than at a limit or a pause.
  bool ended() const { return ended_; }
  /// At most `items` more; then next() is empty until resume(). Processes make items ahead all the same.
  void limit(std::int64_t items);
  /// No process makes items ahead any more once this has returned, except for what a Prefetch has at hand; resume()
  /// lets them. Paused also where it throws, as where a process does not answer.
  void pause();
  void resume();
  bool paused() const { return paused_; }
  /// After the item given last.
  Cursor save() const;
  /// Ends all processes' loops. False: one did not answer in `grace`.
  bool shutdown(Duration grace);

  using Stats = pipeline::Stats;
  Stats stats() const;
  /// Of each process, as in stats().processes: what it did when; empty ones without ProcessOptions::record, and of who
  /// does not tell. `other` in them is a number among the processes. So is stats() good after shutdown().
  std::vector<StageTrace> traces() const;

 private:
  void begin(std::int64_t epoch, const std::optional<Cursor>& cursor, std::int64_t behind);
  const Tree& stages_of(const Cursor& cursor) const;
  void end_iterator();
  void count_time();
  Duration time_spent() const;

  Process process_;
  Placement placement_;
  Counts counts_;
  std::unique_ptr<StageLog> log_;
  std::unique_ptr<ConsumerEndpoint> endpoint_;
  IteratorPtr iterator_;
  mutable std::mutex timing_;               ///< guards the two that follow
  std::optional<Clock::time_point> begun_;  ///< of the epoch under way
  Duration spent_{};                        ///< in those before
  std::int64_t epoch_ = 0;
  std::int64_t num_outputs_ = 0;  ///< of this epoch, where there are no workers and it is recorded
  std::atomic<std::int64_t> left_{std::numeric_limits<std::int64_t>::max()};  ///< until a limit
  std::atomic<bool> paused_{false};
  bool ended_ = false;
  bool over_ = false;
};

}  // namespace levada::pipeline
