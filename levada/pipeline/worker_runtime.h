// The shared base of the dispatching process and the workers: receiving and acknowledging commands, waiting, status.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "levada/base/stage_trace.h"
#include "levada/engine/engine.h"
#include "levada/pipeline/cursors.h"
#include "levada/pipeline/item_channel.h"
#include "levada/pipeline/open_context.h"
#include "levada/pipeline/open_graph.h"
#include "levada/pipeline/placement.h"
#include "levada/pipeline/protocol.h"
#include "levada/pipeline/worker_main.h"

namespace levada::pipeline {

/// Ranks and channels of a pipeline's processes; identical on all of them.
struct ProcessRanks {
  int workers = 0;
  bool has_dispatcher = false;

  static ProcessRanks of(const Placement& placement, const ProcessOptions& options);
  int size() const { return 1 + others(); }
  /// Returns the number of processes other than the consumer.
  int others() const { return workers + (has_dispatcher ? 1 : 0); }
  static constexpr int dispatcher = 1;
  int rank_of(int worker) const { return (has_dispatcher ? 2 : 1) + worker; }
  /// Returns "worker 1", "the dispatching process".
  std::string name(int rank) const;

  /// Opens the command channel, from the consumer to all other processes.
  std::shared_ptr<Channel> open_commands(Engine& engine) const;
  std::shared_ptr<Channel> open_acks(Engine& engine, int from) const;
};
/// Returns the current counts of all stages.
std::vector<protocol::StageTotals> totals_of(const Counts& counts);
/// Returns a log, or null unless recording is on. The log is small enough that the consumer can hold those of all
/// processes.
std::unique_ptr<StageLog> make_stage_log(const Graph& graph, const ProcessOptions& options);
EdgeOptions worker_edge(const ProcessOptions& options);
EdgeOptions main_edge(const ProcessOptions& options);

/// Returns whether the next outputs of workers depend on more than their next inputs.
bool workers_have_state(const Graph& graph, const Placement& placement);

/// Converts any exception to the failure that the consumer throws. `item` is used if the exception has no item.
Failure failure_of(const std::exception_ptr& error, const std::string& process, std::int64_t item);

/// Decides when a process saves its iterator's cursor: after every `every` items or, if that is 0, often enough that a
/// resumed run makes few items again, but so rarely that saving takes one percent of the time, regardless of how long a
/// save takes.
class SnapshotPace {
 public:
  SnapshotPace() = default;
  /// `position`: the number of items before the first one.
  SnapshotPace(std::int64_t every, std::int64_t position) : every_(every), position_(position) {}
  /// Returns whether to save at `position`.
  bool is_due(std::int64_t position, Clock::time_point now) const;
  /// Returns whether `every` items have been made since the last save; false if `every` is 0.
  bool is_every(std::int64_t position) const { return every_ > 0 && position - position_ >= every_; }
  void saved(std::int64_t position, Clock::time_point begun, Clock::time_point ended);

 private:
  std::int64_t every_ = 0, position_ = 0;
  std::optional<Clock::time_point> last_;
  Duration cost_{};
};

/// A thread that posts to the status board when a process has been in the same stage for a while.
class Watch {
 public:
  Watch(std::shared_ptr<Engine> engine, const Graph& graph, std::string process, const Counts& counts);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// For RuntimeOptions::at.
  std::atomic<int>* at() { return &at_; }
  /// Called when the process begins to wait for a rank. works() ends the wait.
  void waits_for(int rank);
  void works() { waiting_.store(false, std::memory_order_relaxed); }

 private:
  void run();
  void look();

  std::shared_ptr<Engine> engine_;
  std::vector<std::string> stages_;
  std::string process_;
  const Counts& counts_;
  std::atomic<int> at_{-1};
  std::atomic<bool> waiting_{true};
  std::int64_t seen_ = -1;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::thread thread_;
};

/// The runtime of a dispatching process or a worker: it receives and acknowledges commands whenever the process waits.
/// All functions must be called on the thread that constructs it. attend(), wait(), wait_for_command(), send() and the
/// polls of an iterator that was opened with runtime_options() throw Interrupted, which only run_epochs() catches, once
/// a command ends the epoch, and PeerLost once a process is lost.
class WorkerRuntime {
 public:
  /// `process` must outlive it. Throws InvalidArgument if the engine does not have the size that the placement needs.
  explicit WorkerRuntime(const Process& process);

  /// Runs `epoch` for each Reset until Shutdown, and `end` after each, even if a command has ended the epoch.
  template <typename Epoch, typename End>
  void run_epochs(const Epoch& epoch, const End& end) {
    while (begin_epoch()) {
      try {
        epoch();
      } catch (...) {
        if (!interrupted()) throw;
      }
      end();
    }
  }
  /// Returns whether a command that ends the current epoch has arrived.
  bool interrupted() const { return left_ || state_.over() || state_.reset_number() != begun_; }
  /// Receives and acknowledges the commands that have arrived; waits while paused.
  void attend();
  /// Waits until one of these conditions holds or a command has arrived, which it handles. `rank`: the rank waited for.
  void wait(const std::vector<Channel*>& receive, const std::vector<Channel*>& publish, std::size_t memory, int rank);
  void wait_for_command() { wait({}, {}, 0, 0); }
  /// Sends everything in `outgoing`.
  void send(std::span<const std::unique_ptr<ItemSender>> outgoing);
  /// Returns the failure for an item of `stage`, the last stage in this process, that cannot be sent to the next
  /// process.
  Failure cannot_pack(int stage, std::int64_t item, const std::exception_ptr& cause) const;

  const protocol::ProcessState& state() const { return state_; }
  const ProcessRanks& ranks() const { return ranks_; }
  const Placement& placement() const { return placement_; }
  const Process& process() const { return process_; }
  Engine& engine() const { return *process_.engine; }
  Traffic& traffic() { return traffic_; }
  /// Returns the clock minus the time that snapshots have taken, to measure the cost of items.
  Clock::time_point work_time() const { return Clock::now() - Duration(snapshot_time_); }
  /// Calls `save` at `position`. Its time does not count towards an item.
  template <typename Save>
  auto snapshot(SnapshotPace& pace, std::int64_t position, const Save& save) {
    const auto begin = Clock::now();
    auto saved = save();
    const auto end = Clock::now();
    pace.saved(position, begin, end);
    snapshot_time_ += (end - begin).count();
    return saved;
  }
  /// Returns null if nothing is recorded.
  StageLog* log() { return log_.get(); }
  /// Records that `items` items of this epoch have been sent.
  void count_sent(std::int64_t items);
  /// Returns the options with which this process opens iterators.
  RuntimeOptions runtime_options(const Copy& copy);

  /// Thrown when the epoch is over. Not a std::exception, since no stage has failed.
  struct Interrupted {};

 private:
  /// Waits for the next Reset and begins its epoch. Returns false after Shutdown.
  bool begin_epoch();
  void receive_commands();
  void wait_once(const std::vector<Channel*>& receive, const std::vector<Channel*>& publish, std::size_t memory,
                 int rank);
  void acknowledge(std::uint64_t command, bool with_trace);
  protocol::ProcessTotals totals() const;

  const Process& process_;
  Placement placement_;
  ProcessRanks ranks_;
  Counts counts_;
  Traffic traffic_;
  std::unique_ptr<StageLog> log_;
  std::shared_ptr<Channel> command_channel_, ack_channel_;
  protocol::ProcessState state_;
  std::uint64_t begun_ = 0;
  bool left_ = false;                ///< the consumer has left
  std::atomic<bool> paused_{false};  ///< a copy of state_.paused(), for the threads that make items ahead
  std::atomic<Duration::rep> snapshot_time_{0};
  Watch watch_;
};

/// Runs the dispatching process until Shutdown.
void dispatch(WorkerRuntime& runtime);
/// Runs worker number `worker` until Shutdown.
void work(WorkerRuntime& runtime, int worker);

}  // namespace levada::pipeline
