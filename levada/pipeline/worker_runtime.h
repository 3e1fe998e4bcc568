// What the dispatching process and a worker have in common: hearing orders and answering them, waiting, saying what
// they do.
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
#include "levada/pipeline/protocol.h"
#include "levada/pipeline/roles.h"

namespace levada::pipeline {

/// Ranks and channels of a pipeline's processes: the same on all of them.
struct ProcessRanks {
  int workers = 0;
  bool has_dispatcher = false;

  static ProcessRanks of(const Placement& placement, const ProcessOptions& options);
  int size() const { return 1 + others(); }
  /// All but the consumer.
  int others() const { return workers + (has_dispatcher ? 1 : 0); }
  static constexpr int dispatcher = 1;
  int rank_of(int worker) const { return (has_dispatcher ? 2 : 1) + worker; }
  /// "worker 1", "the dispatching process"
  std::string name(int rank) const;

  /// The consumer's word to all others.
  std::shared_ptr<Channel> open_commands(Engine& engine) const;
  std::shared_ptr<Channel> open_acks(Engine& engine, int from) const;
};
/// Null unless processes are to record; small enough for the consumer to hold those of all.
std::unique_ptr<StageLog> make_stage_log(const Graph& graph, const ProcessOptions& options);
EdgeOptions worker_edge(const ProcessOptions& options);
EdgeOptions main_edge(const ProcessOptions& options);

/// Whether what workers do next depends on more than what they are dealt next.
bool workers_have_state(const Graph& graph, const Placement& placement);

/// Any exception as what the consumer throws; `item`: where nothing better is known.
Failure failure_of(const std::exception_ptr& error, const std::string& process, std::int64_t item);

/// When a process saves where its iterator stands: after every so many items or, where that is 0, often enough that
/// little is made again and so seldom that it takes one percent of the time, however much a save takes.
class SnapshotPace {
 public:
  explicit SnapshotPace(std::int64_t every = 0) : every_(every) {}
  /// Whether to save at `now`, `items` after the last time.
  bool is_due(std::int64_t items, Clock::time_point now) const;
  void saved(Clock::time_point begun, Clock::time_point ended);

 private:
  std::int64_t every_;
  std::optional<Clock::time_point> last_;
  Duration cost_{};
};

/// Posts which stage a process is in once it has been there for a while. A thread.
class Watch {
 public:
  Watch(std::shared_ptr<Engine> engine, const Graph& graph, std::string process, const Counts& counts);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// For RuntimeOptions::at.
  std::atomic<int>* at() { return &at_; }
  /// The process waits for a rank, or no longer.
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

/// What a dispatching process or a worker runs in: it hears orders and answers them wherever the process waits. The
/// thread that makes it calls all of it. attend(), wait(), wait_for_command(), send() and whatever polls in an iterator
/// that was opened with running() throw Interrupted once orders end the pass, which run_passes() alone catches;
/// PeerLost once a process is lost.
class WorkerRuntime {
 public:
  /// `process` outlives it. Throws InvalidArgument for an engine of another size than the process's placement takes.
  explicit WorkerRuntime(const Process& process);

  /// Runs `pass` for each order to reset, until all is over, and `end` after each, also where orders have ended it.
  template <typename Pass, typename End>
  void run_passes(const Pass& pass, const End& end) {
    while (begin_pass()) {
      try {
        pass();
      } catch (...) {
        if (!interrupted()) throw;
      }
      end();
    }
  }
  /// Returns whether a command has arrived that ends the pass under way.
  bool interrupted() const { return left_ || state_.over() || state_.pass() != begun_; }
  /// Hears and answers the orders that have come; while paused, waits.
  void attend();
  /// Until one of these holds or an order has come, which it attends to. `rank`: who is to do something.
  void wait(const std::vector<Channel*>& receive, const std::vector<Channel*>& publish, std::size_t memory, int rank);
  void wait_for_command() { wait({}, {}, 0, 0); }
  /// Sends all that is in `outgoing`.
  void send(std::span<const std::unique_ptr<ItemSender>> outgoing);
  /// That what this stage, the last one here, has given cannot cross to the next process.
  Failure cannot_pack(int stage, std::int64_t item, const std::exception_ptr& cause) const;

  const protocol::ProcessState& state() const { return state_; }
  const ProcessRanks& ranks() const { return ranks_; }
  const Placement& placement() const { return placement_; }
  const Process& process() const { return process_; }
  Engine& engine() const { return *process_.engine; }
  Traffic& traffic() { return traffic_; }
  /// The clock without the time that snapshots have taken: what items cost.
  Clock::time_point work_time() const { return Clock::now() - Duration(snapshot_time_); }
  /// Calls `save`, whose time is no item's.
  template <typename Save>
  auto snapshot(SnapshotPace& pace, const Save& save) {
    const auto begin = Clock::now();
    auto saved = save();
    const auto end = Clock::now();
    pace.saved(begin, end);
    snapshot_time_ += (end - begin).count();
    return saved;
  }
  /// Null where nothing is recorded.
  StageLog* log() { return log_.get(); }
  /// So many items of this pass have been given on.
  void gave(std::int64_t items);
  /// What iterators of this process are opened with.
  RuntimeOptions runtime_options(const Copy& copy);

  /// The pass is over. No std::exception: no stage has failed.
  struct Interrupted {};

 private:
  /// Waits for an order to reset that has not been begun yet, and begins it. False: all is over.
  bool begin_pass();
  void hear();
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
  bool left_ = false;                ///< the consumer
  std::atomic<bool> paused_{false};  ///< as state_ says, for the threads that make items ahead
  std::atomic<Duration::rep> snapshot_time_{0};
  Watch watch_;
};

/// What the dispatching process does until all is over.
void dispatch(WorkerRuntime& loop);
/// What worker number `worker` does until then.
void work(WorkerRuntime& loop, int worker);

}  // namespace levada::pipeline
