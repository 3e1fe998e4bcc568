// The consumer's end of a pipeline: sends commands, receives the workers' items.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "levada/pipeline/worker_runtime.h"

namespace levada::pipeline {

/// Used by at most two threads at a time, one that takes items and one that sends commands, for example if the consumer
/// runs a Prefetch.
class ConsumerEndpoint {
 public:
  /// `process` and `log`, which may be null, must outlive it.
  ConsumerEndpoint(const Process& process, const Placement& placement, StageLog* log = nullptr);

  // ---- commands, which throw Timeout and PeerLost that name the process

  /// Returns the cursor after the first `items` items, for a placement that is one-to-one.
  static Cursor cursor_after(std::int64_t items);
  /// Begins an epoch, at its first item or at a cursor. No thread may be taking items.
  void reset(std::int64_t epoch, const std::optional<Cursor>& cursor);
  void pause();
  void resume();
  /// Stops all processes from making items that the consumer will not take, until the next reset.
  void halt();
  /// Ends the loops of all processes. Returns whether all of them acknowledged before the deadline.
  bool shutdown(Deadline deadline);
  /// Returns the last acknowledgement of each other process; they are new if all answer within `timeout`.
  std::vector<protocol::Ack> reports(bool with_trace, Duration timeout);
  const Traffic& traffic() const { return traffic_; }

  /// Interrupts the thread that waits for items, which then throws WorkerRuntime::Interrupted. Stays in effect until
  /// the next reset.
  void interrupt();

  // ---- items

  std::optional<Item> next();
  Cursor save() const;

 private:
  struct WorkerQueue {
    std::vector<Item> items;
    std::size_t next = 0;
    std::optional<Failure> failure;
    protocol::WorkerSnapshot snapshot;  ///< the worker's latest snapshot
    std::int64_t snapshot_outputs = 0;  ///< number of the worker's items in this epoch before it
  };
  /// The position at which an epoch begins.
  struct ResumePoint {
    std::int64_t num_outputs = 0;
    protocol::OrderedMerge::Position position;
    protocol::DispatcherSnapshot dispatcher;
    std::vector<protocol::WorkerSnapshot> workers;
  };

  ResumePoint resume_point(const Cursor& cursor) const;
  ResumePoint resume_point_anywhere(std::int64_t num_outputs, const protocol::DispatcherSnapshot& snapshot) const;
  void issue_command(decltype(protocol::Command::what) what, Deadline deadline);
  void publish_command(decltype(protocol::Command::what) what, Deadline deadline);
  void await_acks(Deadline deadline);
  bool all_acked() const;
  /// Returns the channels of processes that have not acknowledged command `number`.
  std::vector<Channel*> unacked(std::uint64_t number) const;
  bool has_left(int rank) const;
  void receive_acks();
  void receive_acks_of(int process);

  void fetch(int worker);
  void use(int worker, ItemReceiver::Arrival arrival);
  /// Returns the number of the dispatching process's first item that a resumed run needs.
  std::int64_t needed() const;
  /// A wait for an item from a worker.
  struct ItemWait {
    Deadline deadline;
    Reminder reminder;
  };
  ItemWait item_wait() const { return {deadline_from_now(), Reminder(process_.options.remind_after)}; }
  Woken wait_for(int worker, ItemWait& wait);
  void wait_while_paused();
  [[noreturn]] void throw_left(int rank);

  template <typename Call>
  auto named(const Call& call);
  std::string name(int rank) const;
  Deadline deadline_from_now() const { return Deadline::after(process_.options.timeout); }
  int workers() const { return ranks_.workers; }

  const Process& process_;
  const Placement placement_;
  ProcessRanks ranks_;
  bool has_state_;
  StageLog* log_;
  Traffic traffic_;
  std::vector<ItemReceiver> receivers_;  ///< by worker

  std::mutex issuing_;  ///< lock that keeps commands in the order of their numbers
  std::mutex receiving_acks_;
  mutable std::mutex control_;  ///< guards the acknowledgements
  std::shared_ptr<Channel> command_channel_;
  std::vector<std::shared_ptr<Channel>> ack_channels_;
  protocol::CommandLog command_log_;
  std::vector<protocol::Ack> last_acks_;  ///< by rank, from 1
  std::vector<bool> left_;                ///< by rank, from 1: whether no more acknowledgements will arrive
  std::atomic<int> unstarted_;            ///< processes that have not sent their first acknowledgement
  std::atomic<bool> paused_{false}, interrupted_{false}, wakes_{false};

  // The current epoch.
  std::uint64_t reset_number_ = 0;
  protocol::OrderedMerge merge_;
  std::vector<WorkerQueue> queues_;  ///< by worker
  SnapshotLog snapshots_;            ///< snapshots from the dispatching process
  std::int64_t outputs_before_ = 0;
  bool halted_ = false;

  std::atomic<bool> over_{false};  ///< the shutdown command has been sent, or is about to be
};

}  // namespace levada::pipeline
