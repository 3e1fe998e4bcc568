// The processes of a pipeline, and the main loop of the dispatching process and the workers. They communicate over an
// Engine with these ranks: 0 is the consumer, followed by the dispatching process if the placement has one, then the
// workers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "levada/base/deadline.h"
#include "levada/engine/collect.h"
#include "levada/engine/engine.h"
#include "levada/pipeline/graph.h"

namespace levada::pipeline {

struct ProcessOptions {
  int workers = 0;
  /// Limits on the items queued for each worker, and from each worker for the consumer. Small items that are made
  /// quickly are sent, and counted, in groups that take about 150 us to make. With 0, each item is sent separately, and
  /// one may be queued.
  std::int64_t worker_prefetch = 10;
  std::int64_t main_prefetch = 10;
  std::size_t prefetch_bytes = std::size_t{64} << 20;  ///< limit on each queue in bytes, in addition to one item
  /// Number of items after which a process saves its position; a resumed run may make this many again. 0: as often as
  /// one percent of the time allows.
  std::int64_t snapshot_every = 0;
  bool ordered = false;  ///< whether to keep the order of a single process, regardless of the stages
  std::uint64_t seed = 0;
  int rank = 0, ranks = 1;                      ///< rank in the job that the consumer belongs to, and its size
  Duration timeout = std::chrono::minutes(30);  ///< limit on the wait for an item or an acknowledgement
  Duration remind_after = Reminder::after;      ///< delay before the consumer's Reminder about one such wait
  bool record = false;                          ///< whether to record the activity of each process, for traces()
};

/// A pipeline that a process runs, and the process's part in it. `engine` is null without workers.
struct Process {
  std::shared_ptr<Engine> engine;
  Graph graph;
  const ItemTraits& traits;
  ProcessOptions options;
  std::string name;                   ///< "worker 0 (process 4242)"
  std::shared_ptr<Engine> all_ranks;  ///< for FullSync, in the consumer
  /// Identifies this pipeline among those that the ranks run together; the same on all ranks. Pipelines with the same
  /// name must begin their epochs in the same order on all ranks.
  std::string name_among_ranks = {};
  /// Called before each epoch, to seed the language's random generators.
  std::function<void(const OpenContext&)> begin_epoch = {};
  /// Called periodically while waiting; its exceptions end the wait.
  std::function<void()> poll = {};
};

/// Runs the dispatching process or a worker, depending on its rank, until the consumer shuts it down or leaves.
/// Acknowledges each command once, and sends failures of the pipeline to the consumer. Throws PeerLost once a process
/// is lost.
void serve(const Process& process);

}  // namespace levada::pipeline
