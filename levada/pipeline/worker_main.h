// The processes of a pipeline, and the main loop of the dispatching process and the workers. They communicate over an
// Engine whose ranks are: 0 the consumer, then the dispatching process if the placement has one, then the workers.
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
  /// Items that may wait for each worker, and from each worker for the consumer. Small items that are made quickly are
  /// sent, and count, many as one: as many as take some 150 us to make. With 0 each item is sent alone, and one may
  /// wait.
  std::int64_t worker_prefetch = 10;
  std::int64_t main_prefetch = 10;
  std::size_t prefetch_bytes = std::size_t{64} << 20;  ///< limit of each in bytes, beyond one item
  /// Items after which a process saves its position; a resumed run may make this many again. 0: as often as one percent
  /// of the time allows.
  std::int64_t snapshot_every = 0;
  bool ordered = false;  ///< keeps the order of a single process, whatever the stages
  std::uint64_t seed = 0;
  int rank = 0, ranks = 1;                      ///< of the job that the consumer is part of
  Duration timeout = std::chrono::minutes(30);  ///< for an item, or an acknowledgement
  Duration remind_after = Reminder::after;      ///< of one such wait in the consumer: as Reminder does
  bool record = false;                          ///< records what each process does when, for traces()
};

/// A pipeline that one process runs, and this process's part in it. `engine` is null without workers.
struct Process {
  std::shared_ptr<Engine> engine;
  Graph graph;
  const ItemTraits& traits;
  ProcessOptions options;
  std::string name;                   ///< "worker 0 (process 4242)"
  std::shared_ptr<Engine> all_ranks;  ///< for FullSync, in the consumer
  /// Names this pipeline among those that the ranks run together, alike on all ranks. Those of one name begin their
  /// epochs in the same order on all ranks.
  std::string name_among_ranks = {};
  /// Called before each epoch, to seed the language's random generators.
  std::function<void(const OpenContext&)> begin_epoch = {};
  /// Called now and then while waiting; what it throws ends the wait.
  std::function<void()> poll = {};
};

/// Runs the dispatching process or a worker, by its rank, until the consumer shuts it down or leaves. Acknowledges each
/// command once, and sends failures of the pipeline to the consumer. Throws PeerLost once a process is lost.
void serve(const Process& process);

}  // namespace levada::pipeline
