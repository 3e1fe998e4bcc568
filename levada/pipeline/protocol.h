// The messages between the processes of a pipeline, and the decisions of each process: values, without I/O.
//
// The consumer sends commands, numbered from one. All other processes receive them in order and acknowledge each once.
// A Reset begins an epoch, and all items carry its number, so that a process recognizes those of an earlier one. Item i
// of the dispatching process is sent to worker i mod N. A worker marks each item that it sends with the number of
// inputs that it had taken by then or, if its stages are one-to-one, with the number of items that it had made. The
// consumer takes items by mark, then by worker, which is the order of the inputs that they were made from. So it does
// not wait for a worker that has nothing to send, and ignores one that has ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/fields.h"
#include "levada/pipeline/failure.h"

namespace levada::pipeline::protocol {

// ---- commands

/// The position at which a worker resumes.
struct WorkerSnapshot {
  std::int64_t num_inputs = 0;   ///< items received before
  std::int64_t num_outputs = 0;  ///< items sent before
  std::int64_t drop = 0;         ///< items that it makes again and drops, because the consumer already has them
  Bytes cursor;                  ///< cursor of its iterator; empty: at the first item
  static auto fields(auto& self) { return std::tie(self.num_inputs, self.num_outputs, self.drop, self.cursor); }
  bool operator==(const WorkerSnapshot&) const = default;
};
/// The position of the dispatching process before item `number`.
struct DispatcherSnapshot {
  std::int64_t number = 0;
  Bytes cursor;  ///< empty: at the first item
  static auto fields(auto& self) { return std::tie(self.number, self.cursor); }
  bool operator==(const DispatcherSnapshot&) const = default;
};

/// Drops everything and begins an epoch. Ends a pause.
struct Reset {
  std::int64_t epoch = 0;
  DispatcherSnapshot dispatcher;
  std::vector<WorkerSnapshot> workers;  ///< empty: all at their first item
  std::int64_t mark = 0;                ///< items with smaller marks are not sent: the consumer already has them
  static auto fields(auto& self) { return std::tie(self.epoch, self.dispatcher, self.workers, self.mark); }
  bool operator==(const Reset&) const = default;
};
struct Pause {
  static auto fields(auto&) { return std::tie(); }
  bool operator==(const Pause&) const = default;
};
/// Ends a pause.
struct Resume {
  static auto fields(auto&) { return std::tie(); }
  bool operator==(const Resume&) const = default;
};
/// Requests only an acknowledgement.
struct Report {
  bool with_trace = false;
  static auto fields(auto& self) { return std::tie(self.with_trace); }
  bool operator==(const Report&) const = default;
};
struct Shutdown {
  static auto fields(auto&) { return std::tie(); }
  bool operator==(const Shutdown&) const = default;
};

struct Command {
  std::uint64_t number = 0;
  std::variant<Reset, Pause, Resume, Report, Shutdown> what;
  static auto fields(auto& self) { return std::tie(self.number, self.what); }
  bool operator==(const Command&) const = default;
};

/// The counters of a stage: see StageCounts.
struct StageTotals {
  std::int64_t items = 0, skipped = 0, busy_ns = 0, waited_ns = 0;
  static auto fields(auto& self) { return std::tie(self.items, self.skipped, self.busy_ns, self.waited_ns); }
  bool operator==(const StageTotals&) const = default;

  double busy_seconds() const { return static_cast<double>(busy_ns) / 1e9; }
  double waited_seconds() const { return static_cast<double>(waited_ns) / 1e9; }
};
/// The counters of a process since its start.
struct ProcessTotals {
  std::vector<StageTotals> stages;
  std::int64_t messages = 0, wakeups = 0;
  std::uint64_t bytes = 0, copied = 0;
  static auto fields(auto& self) { return std::tie(self.stages, self.messages, self.wakeups, self.bytes, self.copied); }
  bool operator==(const ProcessTotals&) const = default;
};
/// Acknowledges command `number`; 0 announces that the process has started.
struct Ack {
  std::uint64_t number = 0;
  std::string process;
  ProcessTotals totals;
  Bytes trace;  ///< one StageTrace if the command requests it; otherwise empty
  static auto fields(auto& self) { return std::tie(self.number, self.process, self.totals, self.trace); }
  bool operator==(const Ack&) const = default;
};

// ---- items

enum class Ending : std::uint8_t {
  none = 1,
  ended = 2,
  failed = 3,
  left = 4,  ///< only from a worker: it ended before its inputs did
};
constexpr Ending last_of(Ending) {
  return Ending::left;
}

/// The header of a message of items.
struct Items {
  std::uint64_t reset = 0;  ///< number of its Reset
  std::int64_t first = 0;   ///< from the dispatching process: the first item's number; from a worker: items sent before
  std::uint32_t count = 0;  ///< items in this message; from the dispatching process, their numbers increase by N
  Ending ending = Ending::none;    ///< the ending after them
  std::optional<Failure> failure;  ///< if failed

  std::vector<std::int64_t> marks;         ///< from a worker: one per item, non-decreasing
  std::int64_t reached = 0;                ///< from a worker: lower bound on the marks of later items and of the ending
  std::optional<WorkerSnapshot> snapshot;  ///< from a worker: how to make these items again, dropping none
  std::vector<DispatcherSnapshot> dispatcher_snapshots;  ///< positions before items that the worker has received
  static auto fields(auto& self) {
    return std::tie(self.reset, self.first, self.count, self.ending, self.failure, self.marks, self.reached,
                    self.snapshot, self.dispatcher_snapshots);
  }
  /// Throws CorruptMessage.
  void check() const;
  bool operator==(const Items&) const = default;
};

/// The treatment of a received message.
enum class Decision : std::uint8_t {
  use,
  drop,  ///< from an epoch that is over
  keep,  ///< from an epoch whose Reset has not arrived yet
};

// ---- decisions

/// The state of a dispatching process or a worker after the commands that it has received.
class ProcessState {
 public:
  /// Throws CorruptMessage unless the command's number follows that of the last one.
  void apply(const Command& command);

  /// Returns the number of the last applied command, which is the last acknowledged one.
  std::uint64_t applied() const { return applied_; }
  /// Returns the number of the last Reset; 0 before the first one.
  std::uint64_t reset_number() const { return reset_number_; }
  const Reset& reset() const { return reset_; }
  bool paused() const { return paused_; }
  bool over() const { return over_; }
  Decision decide(std::uint64_t reset) const;

  bool operator==(const ProcessState&) const = default;

 private:
  std::uint64_t applied_ = 0, reset_number_ = 0;
  Reset reset_;
  bool paused_ = false, over_ = false;
};

/// Decides which worker gets the dispatching process's next item, in one epoch.
class RoundRobinAssigner {
 public:
  RoundRobinAssigner() = default;
  RoundRobinAssigner(int workers, const Reset& reset);

  /// Returns the number of the next item, and its worker.
  std::int64_t number() const { return number_; }
  int worker() const { return static_cast<int>(number_ % workers_); }
  /// Returns whether the worker needs the next item, rather than having received it before the resumed state.
  bool wanted() const;
  /// Returns how many of the next items no worker needs.
  std::int64_t unwanted() const;
  void advance(std::int64_t items = 1) { number_ += items; }
  /// Returns whether the dispatched items include all that the workers had received before the resumed state. If this
  /// is still false at the end, the data is shorter than the state claims.
  bool has_caught_up() const;

  bool operator==(const RoundRobinAssigner&) const = default;

 private:
  int workers_ = 1;
  std::int64_t number_ = 0;
  std::vector<std::int64_t> first_;  ///< by worker: the first item that it needs
};

/// The inputs of a worker, in one epoch.
class WorkerInput {
 public:
  WorkerInput() = default;
  WorkerInput(int worker, int workers, std::int64_t num_inputs)
      : worker_(worker), workers_(workers), num_inputs_(num_inputs) {}

  /// Adds a message of this epoch. Throws CorruptMessage unless its items follow the last ones.
  void apply(const Items& items);
  std::int64_t at_hand() const { return at_hand_; }
  /// Takes one of the items at hand.
  void pull();
  /// Returns whether the ending is next: no item is at hand, and none will arrive.
  bool at_ending() const { return at_hand_ == 0 && ending_ != Ending::none; }
  void pull_ending() { pulled_ending_ = true; }
  /// Sets the position of a restored iterator, before the first message.
  void restore(std::int64_t num_inputs, bool pulled_ending);
  Ending ending() const { return ending_; }
  bool pulled_ending() const { return pulled_ending_; }
  std::int64_t num_inputs() const { return num_inputs_; }
  /// Returns the mark of the next output, unless all stages are one-to-one: then outputs are counted.
  std::int64_t mark() const { return num_inputs_ + (pulled_ending_ ? 1 : 0); }

  bool operator==(const WorkerInput&) const = default;

 private:
  int worker_ = 0, workers_ = 1;
  std::int64_t num_inputs_ = 0;
  std::int64_t at_hand_ = 0;
  Ending ending_ = Ending::none;
  bool pulled_ending_ = false;
};

/// Decides the order in which the consumer takes the workers' items, in one epoch.
class OrderedMerge {
 public:
  /// The position at the items of `worker` that have mark `mark`.
  struct Position {
    std::int64_t mark = 0;
    int worker = 0;
    bool operator==(const Position&) const = default;
  };

  OrderedMerge() = default;
  OrderedMerge(int workers, Position position) : position_(position), queues_(static_cast<std::size_t>(workers)) {}

  /// Adds a message of this epoch. Throws CorruptMessage unless its items follow the last ones.
  void apply(int worker, const Items& items);

  enum class Step : std::uint8_t {
    pull,    ///< the next item of worker()
    wait,    ///< wait for a message of worker()
    failed,  ///< worker() ended with a failure
    ended,
  };
  Step next();
  int worker() const { return position_.worker; }
  /// Called after the item that Step::pull asked for was pulled.
  void pulled();

  const Position& position() const { return position_; }
  std::int64_t num_outputs() const { return num_outputs_; }
  std::int64_t num_outputs(int worker) const { return queues_[static_cast<std::size_t>(worker)].num_outputs; }
  /// Returns whether any worker has left. The dispatching process may still make items for it.
  bool any_left() const;

  bool operator==(const OrderedMerge&) const = default;

 private:
  struct WorkerQueue {
    std::vector<std::int64_t> marks;  ///< marks of the messages applied last
    std::size_t at = 0;               ///< index of the next mark
    std::int64_t sent = 0, num_outputs = 0;
    std::int64_t reached = 0;
    Ending ending = Ending::none;
    bool operator==(const WorkerQueue&) const = default;
  };
  bool advance();

  Position position_;
  std::vector<WorkerQueue> queues_;
  std::int64_t num_outputs_ = 0;
};

/// The consumer's commands, and the processes that have acknowledged them.
class CommandLog {
 public:
  CommandLog() = default;
  explicit CommandLog(int processes) : acked_(static_cast<std::size_t>(processes), 0) {}

  /// Returns the next command. All processes must have acknowledged the last one, unless this is a Shutdown.
  Command issue(decltype(Command::what) what);
  /// Records an acknowledgement of process `process`, counted from 0. Throws CorruptMessage for an unknown command or a
  /// repeated acknowledgement.
  void apply(int process, const Ack& ack);
  std::uint64_t issued() const { return issued_; }
  bool acked(int process) const { return acked_[static_cast<std::size_t>(process)] == issued_; }
  bool all_acked() const;

  bool operator==(const CommandLog&) const = default;

 private:
  std::uint64_t issued_ = 0;
  std::vector<std::uint64_t> acked_;
};

}  // namespace levada::pipeline::protocol
