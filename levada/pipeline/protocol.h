// What the processes of a pipeline tell each other, and what each decides: values, without I/O.
//
// The consumer gives orders, numbered from one, which all others hear in turn and answer once. An order to reset begins
// a pass; all items carry its number, so that those of an earlier pass are known. Item i of the dispatching process
// goes to worker i mod N. What a worker gives is marked with how many items it had drawn by then: the consumer takes
// items by mark, then by worker, which is the order of those that they were made from. So no worker is waited for that
// has nothing to give, and one that has ended drops out by itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/pipeline/failure.h"
#include "levada/pipeline/fields.h"

namespace levada::pipeline::protocol {

// ---- orders

/// Where a worker begins.
struct WorkerSnapshot {
  std::int64_t drawn = 0;  ///< items dealt to it before: it is sent those that follow
  std::int64_t given = 0;  ///< items that it had given there
  std::int64_t drop = 0;   ///< items that it makes first and that the consumer has had
  Bytes cursor;            ///< its iterator's; empty: at its first item
  static auto fields(auto& self) { return std::tie(self.drawn, self.given, self.drop, self.cursor); }
  bool operator==(const WorkerSnapshot&) const = default;
};
/// Where the dispatching process stands before item `number`.
struct DispatcherSnapshot {
  std::int64_t number = 0;
  Bytes cursor;  ///< empty: at its first item
  static auto fields(auto& self) { return std::tie(self.number, self.cursor); }
  bool operator==(const DispatcherSnapshot&) const = default;
};

/// Drop everything and begin anew. Ends a pause.
struct Reset {
  std::int64_t epoch = 0;
  DispatcherSnapshot dispatcher;
  std::vector<WorkerSnapshot> workers;  ///< empty: all at their first item
  std::int64_t mark = 0;                ///< the consumer has had what has a smaller one: nobody is told of it
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
/// Nothing but an answer.
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

/// What a process has done so far.
struct ProcessTotals {
  struct OfStage {
    std::int64_t items = 0, skipped = 0, busy_ns = 0, waited_ns = 0;
    static auto fields(auto& self) { return std::tie(self.items, self.skipped, self.busy_ns, self.waited_ns); }
    bool operator==(const OfStage&) const = default;
  };
  std::vector<OfStage> stages;
  std::int64_t messages = 0, wakeups = 0;
  std::uint64_t bytes = 0, copied = 0;
  static auto fields(auto& self) { return std::tie(self.stages, self.messages, self.wakeups, self.bytes, self.copied); }
  bool operator==(const ProcessTotals&) const = default;
};
/// To order `number`; to order 0, that the process is there.
struct Ack {
  std::uint64_t number = 0;
  std::string process;
  ProcessTotals totals;
  Bytes trace;  ///< one StageTrace, where the order asks for it; empty: none
  static auto fields(auto& self) { return std::tie(self.number, self.process, self.totals, self.trace); }
  bool operator==(const Ack&) const = default;
};

// ---- items

enum class Ending : std::uint8_t {
  none = 1,
  ended = 2,
  failed = 3,
  left = 4,  ///< from a worker: ended, though it might be dealt more
};
constexpr Ending last_of(Ending) {
  return Ending::left;
}

/// What stands before a message's items.
struct Items {
  std::uint64_t pass = 0;   ///< the number of the order to reset
  std::int64_t first = 0;   ///< from the dispatching process: the first item's number. From a worker: items sent before
  std::uint32_t count = 0;  ///< items here; from the dispatching process each has a number N larger than the one before
  Ending ending = Ending::none;    ///< after them
  std::optional<Failure> failure;  ///< where failed

  std::vector<std::int64_t> marks;      ///< from a worker: one an item; none smaller than the one before
  std::int64_t reached = 0;             ///< from a worker: what follows, and an ending, has no smaller mark
  std::optional<WorkerSnapshot> start;  ///< from a worker: how it would make these items again, none dropped
  std::vector<DispatcherSnapshot>
      places;  ///< of the dispatching process; the items that they precede are among those drawn
  static auto fields(auto& self) {
    return std::tie(self.pass, self.first, self.count, self.ending, self.failure, self.marks, self.reached, self.start,
                    self.places);
  }
  /// Throws CorruptMessage.
  void check() const;
  bool operator==(const Items&) const = default;
};

/// What to do with a message.
enum class Decision : std::uint8_t {
  use,
  drop,  ///< of a pass that is over
  keep,  ///< of a pass that this process has still to be told of
};

// ---- decisions

/// Where a dispatching process or a worker stands by the orders that it has heard.
class ProcessState {
 public:
  /// Throws CorruptMessage for an order that does not follow on the last.
  void apply(const Command& command);

  /// Returns the number of the last applied command, which is the last acknowledged one.
  std::uint64_t applied() const { return applied_; }
  /// 0: none has been ordered yet.
  std::uint64_t pass() const { return pass_; }
  const Reset& reset() const { return reset_; }
  bool paused() const { return paused_; }
  bool over() const { return over_; }
  Decision decide(std::uint64_t pass) const;

  bool operator==(const ProcessState&) const = default;

 private:
  std::uint64_t applied_ = 0, pass_ = 0;
  Reset reset_;
  bool paused_ = false, over_ = false;
};

/// Whom the dispatching process deals to, in one pass.
class RoundRobinAssigner {
 public:
  RoundRobinAssigner() = default;
  RoundRobinAssigner(int workers, const Reset& reset);

  /// Of the next item.
  std::int64_t number() const { return number_; }
  int worker() const { return static_cast<int>(number_ % workers_); }
  /// Whether its worker has not had it.
  bool wanted() const;
  void dealt() { ++number_; }
  /// Whether so many items have been dealt that each worker can have had what it says: else there are fewer than that.
  bool has_caught_up() const;

  bool operator==(const RoundRobinAssigner&) const = default;

 private:
  int workers_ = 1;
  std::int64_t number_ = 0;
  std::vector<std::int64_t> first_;  ///< by worker: the first that it wants
};

/// What a worker has drawn, in one pass.
class WorkerInput {
 public:
  WorkerInput() = default;
  WorkerInput(int worker, int workers, std::int64_t drawn) : worker_(worker), workers_(workers), drawn_(drawn) {}

  /// A message of this pass. Throws CorruptMessage unless its items follow on the last.
  void apply(const Items& items);
  std::int64_t at_hand() const { return at_hand_; }
  /// Takes one of them.
  void draw();
  /// Nothing at hand, and nothing to come: the end, or the failure, is what is drawn.
  bool at_ending() const { return at_hand_ == 0 && ending_ != Ending::none; }
  void draw_ending() { drew_ending_ = true; }
  /// Where its iterator begins: before the first message.
  void restore(std::int64_t drawn, bool drew_ending);
  Ending ending() const { return ending_; }
  bool drew_ending() const { return drew_ending_; }
  std::int64_t drawn() const { return drawn_; }
  /// Of what is given now.
  std::int64_t mark() const { return drawn_ + (drew_ending_ ? 1 : 0); }

  bool operator==(const WorkerInput&) const = default;

 private:
  int worker_ = 0, workers_ = 1;
  std::int64_t drawn_ = 0;
  std::int64_t at_hand_ = 0;
  Ending ending_ = Ending::none;
  bool drew_ending_ = false;
};

/// In which order the consumer takes what the workers give, in one pass.
class OrderedMerge {
 public:
  /// Where it stands: at items of worker `worker` that have mark `mark`.
  struct Position {
    std::int64_t mark = 0;
    int worker = 0;
    bool operator==(const Position&) const = default;
  };

  OrderedMerge() = default;
  OrderedMerge(int workers, Position position) : position_(position), queues_(static_cast<std::size_t>(workers)) {}

  /// A message of this pass. Throws CorruptMessage for items that do not follow on those before.
  void apply(int worker, const Items& items);

  enum class Step : std::uint8_t {
    give,    ///< the next item of worker()
    wait,    ///< for a message of worker()
    failed,  ///< with the failure that ended worker()
    ended,
  };
  Step next();
  int worker() const { return position_.worker; }
  /// After Step::give.
  void gave();

  const Position& position() const { return position_; }
  std::int64_t given() const { return given_; }
  std::int64_t given(int worker) const { return queues_[static_cast<std::size_t>(worker)].given; }
  /// Whether somebody may still make items for workers that take none.
  bool any_left() const;

  bool operator==(const OrderedMerge&) const = default;

 private:
  struct WorkerQueue {
    std::vector<std::int64_t> marks;  ///< of the messages last applied
    std::size_t at = 0;               ///< the next of them
    std::int64_t sent = 0, given = 0;
    std::int64_t reached = 0;
    Ending ending = Ending::none;
    bool operator==(const WorkerQueue&) const = default;
  };
  bool advance();

  Position position_;
  std::vector<WorkerQueue> queues_;
  std::int64_t given_ = 0;
};

/// The consumer's orders, and who has still to answer.
class CommandLog {
 public:
  CommandLog() = default;
  explicit CommandLog(int processes) : acked_(static_cast<std::size_t>(processes), 0) {}

  /// Only when all have answered the last one.
  Command give(decltype(Command::what) what);
  /// Of process `process`, counted from 0. Throws CorruptMessage for what answers no order, or again.
  void apply(int process, const Ack& ack);
  std::uint64_t given() const { return given_; }
  bool acked(int process) const { return acked_[static_cast<std::size_t>(process)] == given_; }
  bool all_acked() const;

  bool operator==(const CommandLog&) const = default;

 private:
  std::uint64_t given_ = 0;
  std::vector<std::uint64_t> acked_;
};

}  // namespace levada::pipeline::protocol
