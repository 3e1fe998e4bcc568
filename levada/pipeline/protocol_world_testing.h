// Explores all interleavings of a consumer, a dispatching process and some workers that decide by the protocol's own
// states.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "levada/base/hash.h"
#include "levada/pipeline/protocol.h"

namespace levada::pipeline::protocol::testing {

enum class Stages : std::uint8_t { one_to_one, some_dropped, some_doubled };
enum class Request : std::uint8_t { reset, pause, resume, shutdown };

struct Setup {
  int workers = 2;
  std::int64_t items = 3;
  std::size_t window = 1;
  int group = 1;  ///< items dispatched at once
  Stages stages = Stages::one_to_one;
  /// Maximum number of inputs that a worker pulls ahead while it need not wait for them. Only with Stages::one_to_one.
  std::int64_t max_held = 0;
  std::vector<Request> requests{};                        ///< after the first reset: each at any time, in this order
  std::int64_t dispatcher_fails = -1, worker_fails = -1;  ///< item at which it fails
  std::int64_t leaves_after = -1;                         ///< number of items after which a worker ends on its own
  /// For an epoch begun at a cursor: the consumer has taken all items with smaller marks. Each worker resumes after
  /// num_inputs inputs, and makes again and drops the items that the consumer already has.
  std::int64_t mark = 0;
  std::vector<std::int64_t> num_inputs{};

  Reset reset() const {
    Reset reset{.epoch = 0, .dispatcher = {}, .workers = {}, .mark = mark};
    for (const std::int64_t number : num_inputs) reset.workers.push_back({.num_inputs = number, .cursor = {}});
    return reset;
  }

  int copies_of(std::int64_t item) const {
    if (stages == Stages::one_to_one) return 1;
    return static_cast<int>(stages == Stages::some_dropped ? item % 2 : item % 3);
  }
};

struct Message {
  Items items;
  std::vector<std::int64_t> values;
};

/// For queues, which are vectors because they are copied more often than taken from.
template <typename T>
T take_first(std::vector<T>& queue) {
  T first = std::move(queue.front());
  queue.erase(queue.begin());
  return first;
}

struct DispatcherModel {
  ProcessState state;
  RoundRobinAssigner assigner;
  std::vector<std::optional<Message>> pending;
  bool ended = false;
};

struct WorkerModel {
  ProcessState state;
  WorkerInput input;
  std::int64_t made = 0;  ///< inputs that have become outputs
  std::optional<Message> pending, early;
  std::int64_t sent = 0, reached = 0;
  bool finished = false;
};

struct MergeQueue {
  std::vector<std::int64_t> values;
  std::int64_t applied = 0;
};

struct World {
  CommandLog commands;
  OrderedMerge merge;
  std::vector<MergeQueue> merge_queues;
  std::uint64_t reset = 0;
  std::size_t requested = 0;
  bool paused = false, shut = false, finished = false;
  std::vector<std::int64_t> outputs;

  DispatcherModel dispatcher;
  std::vector<WorkerModel> workers;
  std::vector<std::vector<Command>> command_queues;  ///< the dispatching process's first
  std::vector<std::vector<Ack>> ack_queues;
  std::vector<std::vector<Message>> dispatched, collected;
};

class Explorer {
 public:
  explicit Explorer(Setup setup) : setup_(std::move(setup)) {}

  /// Returns the number of states. Fails the test if one is wrong.
  std::size_t run() {
    World world;
    const auto count = static_cast<std::size_t>(setup_.workers);
    world.commands = CommandLog(setup_.workers + 1);
    world.workers.resize(count);
    world.merge_queues.resize(count);
    world.dispatched.resize(count);
    world.collected.resize(count);
    world.command_queues.resize(count + 1);
    world.ack_queues.resize(count + 1);
    request(world, Request::reset);
    seen_.insert(key(world));
    std::vector<World> waiting{std::move(world)};
    while (!waiting.empty() && !::testing::Test::HasFailure()) {
      World next = std::move(waiting.back());
      waiting.pop_back();
      bool moved = false;
      each_move(next, [&](World moved_to) {
        moved = true;
        if (seen_.insert(key(moved_to)).second) waiting.push_back(std::move(moved_to));
      });
      EXPECT_TRUE(moved || is_over(next)) << "nobody can move, " << describe(next);
    }
    return seen_.size();
  }

  /// Returns the outputs at the ends that were reached.
  bool reached_end() const { return reached_end_; }

 private:
  /// The moves of different processes commute. So if a process has only one move, and will receive nothing that could
  /// come before it, that move represents all orders in which processes might move.
  template <typename To>
  void each_move(const World& world, const To& to) {
    bool is_enough = false;
    const auto attempt = [&](bool is_alone, const auto& move) {
      if (is_enough) return;
      World copy = world;
      if (!move(copy)) return;
      is_enough = is_alone;
      to(std::move(copy));
    };
    const bool all_informed = world.requested == setup_.requests.size() && !world.finished;
    const auto is_informed = [&](int process) {
      return all_informed && world.command_queues[static_cast<std::size_t>(process)].empty();
    };
    for (int p = 0; p <= setup_.workers; ++p) {
      attempt(true, [&](World& w) { return receive_ack(w, p); });
    }
    attempt(all_informed, [&](World& w) { return pull_item(w); });
    // A worker that holds inputs makes another move if a message arrives first.
    const bool commutes = setup_.max_held == 0;
    for (int i = 0; i < setup_.workers; ++i)
      attempt(commutes && is_informed(i + 1), [&](World& w) { return work(w, i); });
    for (int i = 0; i < setup_.workers; ++i) attempt(is_informed(0), [&](World& w) { return send_share(w, i); });
    attempt(is_informed(0), [&](World& w) { return dispatch(w); });
    for (int p = 0; p <= setup_.workers; ++p) attempt(false, [&](World& w) { return receive_command(w, p); });
    attempt(false, [&](World& w) { return make_request(w); });
  }

  bool is_over(const World& world) const {
    return world.shut && world.commands.all_acked() && world.dispatcher.state.over() &&
           std::all_of(world.workers.begin(), world.workers.end(), [](const auto& w) { return w.state.over(); });
  }

  void request(World& world, Request request) {
    decltype(Command::what) what;
    switch (request) {
      case Request::reset: what = setup_.reset(); break;
      case Request::pause: what = Pause{}; break;
      case Request::resume: what = Resume{}; break;
      case Request::shutdown: what = Shutdown{}; break;
    }
    const Command command = world.commands.issue(what);
    for (auto& queue : world.command_queues) queue.push_back(command);
    if (request == Request::reset) {
      world.reset = command.number;
      world.merge = OrderedMerge(setup_.workers, {setup_.mark, 0});
      for (auto& queue : world.merge_queues) queue = {};
      world.outputs.clear();
      world.finished = false;
    }
    world.shut = request == Request::shutdown;
    world.paused = request == Request::pause;
  }

  bool make_request(World& world) {
    if (world.shut || !world.commands.all_acked()) return false;
    if (world.requested < setup_.requests.size()) {
      request(world, setup_.requests[world.requested++]);
      return true;
    }
    if (!world.finished) return false;
    request(world, Request::shutdown);
    return true;
  }

  bool receive_ack(World& world, int process) {
    auto& queue = world.ack_queues[static_cast<std::size_t>(process)];
    if (queue.empty()) return false;
    world.commands.apply(process, take_first(queue));
    return true;
  }

  bool pull_item(World& world) {
    if (world.shut || world.paused || world.finished) return false;
    const auto step = world.merge.next();
    const int worker = world.merge.worker();
    auto& merging = world.merge_queues[static_cast<std::size_t>(worker)];
    switch (step) {
      case OrderedMerge::Step::pull:
        world.merge.pulled();
        world.outputs.push_back(take_first(merging.values));
        expect_in_order(world);
        return true;
      case OrderedMerge::Step::wait: break;
      case OrderedMerge::Step::failed: end(world, true); return true;
      case OrderedMerge::Step::ended: end(world, false); return true;
    }
    auto& queue = world.collected[static_cast<std::size_t>(worker)];
    if (queue.empty()) return false;
    const Message message = take_first(queue);
    EXPECT_LE(message.items.reset, world.reset);
    if (message.items.reset != world.reset) return true;
    world.merge.apply(worker, message.items);
    merging.values.insert(merging.values.end(), message.values.begin(), message.values.end());
    ++merging.applied;
    return true;
  }

  void end(World& world, bool failed) {
    reached_end_ = true;
    world.finished = true;
    EXPECT_EQ(failed, setup_.dispatcher_fails >= 0 || setup_.worker_fails >= 0);
    EXPECT_EQ(world.outputs, expected(world.reset)) << describe(world);
    EXPECT_EQ(world.merge.any_left(), setup_.leaves_after >= 0 && !failed);
  }

  /// Returns the outputs of a single process: the copies of each item.
  std::vector<std::int64_t> expected(std::uint64_t reset) const {
    std::vector<std::int64_t> values;
    std::vector<std::int64_t> num_outputs(static_cast<std::size_t>(setup_.workers), 0);
    for (std::int64_t item = 0; item < setup_.items; ++item) {
      if (item == setup_.dispatcher_fails || item == setup_.worker_fails) break;
      if (item / setup_.workers + 1 < setup_.mark) continue;
      auto& of_worker = num_outputs[static_cast<std::size_t>(item % setup_.workers)];
      for (int copy = 0; copy < setup_.copies_of(item); ++copy) {
        if (setup_.leaves_after >= 0 && of_worker == setup_.leaves_after) break;
        ++of_worker;
        values.push_back(value(reset, item, copy));
      }
    }
    return values;
  }

  static std::int64_t value(std::uint64_t reset, std::int64_t item, int copy) {
    return static_cast<std::int64_t>(reset) * 1000 + item * 10 + copy;
  }

  void expect_in_order(const World& world) const {
    const auto all = expected(world.reset);
    ASSERT_LE(world.outputs.size(), all.size()) << describe(world);
    EXPECT_TRUE(std::equal(world.outputs.begin(), world.outputs.end(), all.begin())) << describe(world);
  }

  bool receive_command(World& world, int process) {
    auto& queue = world.command_queues[static_cast<std::size_t>(process)];
    if (queue.empty()) return false;
    const Command command = take_first(queue);
    const bool resets = std::holds_alternative<Reset>(command.what);
    if (process == 0) {
      auto& dispatcher = world.dispatcher;
      dispatcher.state.apply(command);
      if (resets) {
        dispatcher.assigner = RoundRobinAssigner(setup_.workers, dispatcher.state.reset());
        dispatcher.ended = false;
      }
      if (resets || dispatcher.state.over() || dispatcher.pending.empty()) {
        dispatcher.pending.assign(static_cast<std::size_t>(setup_.workers), std::nullopt);
      }
    } else {
      auto& worker = world.workers[static_cast<std::size_t>(process - 1)];
      worker.state.apply(command);
      if (resets) {
        const auto early = std::move(worker.early);
        const ProcessState state = worker.state;
        const auto index = static_cast<std::size_t>(process - 1);
        const std::int64_t num_inputs = index < setup_.num_inputs.size() ? setup_.num_inputs[index] : 0;
        worker = {.state = state,
                  .input = WorkerInput(process - 1, setup_.workers, num_inputs),
                  .made = num_inputs,
                  .early = early};
        worker.reached = state.reset().mark;
      }
    }
    world.ack_queues[static_cast<std::size_t>(process)].push_back({.number = command.number});
    return true;
  }

  static bool runs(const ProcessState& state) { return state.reset_number() != 0 && !state.paused() && !state.over(); }
  bool dispatch(World& world) {
    auto& dispatcher = world.dispatcher;
    auto& assigner = dispatcher.assigner;
    const bool busy = std::any_of(dispatcher.pending.begin(), dispatcher.pending.end(), [](auto& m) { return !!m; });
    if (!runs(dispatcher.state) || dispatcher.ended || busy) return false;
    bool moved = false;
    for (int i = 0; i < setup_.group && assigner.number() < setup_.items; ++i) {
      if (assigner.number() == setup_.dispatcher_fails) break;
      moved = true;
      if (!assigner.wanted()) {
        assigner.advance();
        continue;
      }
      auto& message = dispatcher.pending[static_cast<std::size_t>(assigner.worker())];
      if (!message) message = Message{{.reset = dispatcher.state.reset_number(), .first = assigner.number()}, {}};
      ++message->items.count;
      assigner.advance();
    }
    if (moved && assigner.number() < setup_.items) return true;
    const bool fails = assigner.number() == setup_.dispatcher_fails;
    for (int w = 0; w < setup_.workers; ++w) {
      auto& message = dispatcher.pending[static_cast<std::size_t>(w)];
      if (!message) message = Message{{.reset = dispatcher.state.reset_number()}, {}};
      message->items.ending = fails && assigner.worker() == w ? Ending::failed : Ending::ended;
    }
    dispatcher.ended = true;
    return true;
  }

  bool send_share(World& world, int to) {
    auto& dispatcher = world.dispatcher;
    const auto index = static_cast<std::size_t>(to);
    if (!runs(dispatcher.state) || !dispatcher.pending[index]) return false;
    if (world.dispatched[index].size() >= setup_.window) return false;
    world.dispatched[index].push_back(*std::exchange(dispatcher.pending[index], std::nullopt));
    return true;
  }

  bool work(World& world, int number) {
    auto& worker = world.workers[static_cast<std::size_t>(number)];
    if (!runs(worker.state)) return false;
    if (worker.pending) {
      auto& queue = world.collected[static_cast<std::size_t>(number)];
      if (queue.size() >= setup_.window) return false;
      queue.push_back(*std::exchange(worker.pending, std::nullopt));
      return true;
    }
    if (worker.finished) return receive_dispatched(world, number).has_value();
    const std::int64_t held = worker.input.num_inputs() - worker.made;
    if (worker.input.at_hand() > 0 && held < std::max<std::int64_t>(setup_.max_held, 1)) {
      worker.input.pull();
      return setup_.max_held > 0 || make(worker, number);
    }
    if (held > 0 && (held == setup_.max_held || worker.input.at_ending())) return make(worker, number);
    if (worker.input.at_ending()) {
      worker.input.pull_ending();
      put(worker, {}, worker.input.ending());
      return true;
    }
    if (auto message = receive_dispatched(world, number)) {
      if (*message) worker.input.apply((*message)->items);
      return true;
    }
    if (held > 0) return make(worker, number);
    if (setup_.stages == Stages::one_to_one || worker.early || worker.reached > worker.input.num_inputs()) return false;
    put(worker, {}, Ending::none, worker.input.num_inputs() + 1);
    return true;
  }

  /// Returns nothing if no message was there, and otherwise the message if it is of use.
  std::optional<std::optional<Message>> receive_dispatched(World& world, int number) {
    auto& worker = world.workers[static_cast<std::size_t>(number)];
    auto& queue = world.dispatched[static_cast<std::size_t>(number)];
    std::optional<Message> message = std::exchange(worker.early, std::nullopt);
    if (!message) {
      if (queue.empty()) return std::nullopt;
      message = take_first(queue);
    }
    const Decision decision = worker.state.decide(message->items.reset);
    if (decision == Decision::use) return message;
    if (decision == Decision::drop) return std::optional<Message>();
    const bool was_there = queue.size() == setup_.window;
    worker.early = std::move(message);
    return was_there ? std::optional(std::optional<Message>()) : std::nullopt;
  }

  bool make(WorkerModel& worker, int number) {
    const std::int64_t item = worker.made++ * setup_.workers + number;
    if (item == setup_.worker_fails) {
      put(worker, {}, Ending::failed);
      return true;
    }
    if (worker.made < setup_.mark) return true;
    std::vector<std::int64_t> values;
    for (int copy = 0; copy < setup_.copies_of(item); ++copy) {
      if (setup_.leaves_after >= 0 && worker.sent + copy == setup_.leaves_after) break;
      values.push_back(value(worker.state.reset_number(), item, copy));
    }
    const bool leaves =
        setup_.leaves_after >= 0 && worker.sent + static_cast<std::int64_t>(values.size()) == setup_.leaves_after;
    if (!values.empty() || leaves) put(worker, std::move(values), leaves ? Ending::left : Ending::none);
    return true;
  }

  void put(WorkerModel& worker, std::vector<std::int64_t> values, Ending ending, std::int64_t reached = 0) {
    const std::int64_t held = worker.input.num_inputs() - worker.made;
    const std::int64_t mark = worker.input.mark() - held;
    const bool announces = setup_.stages == Stages::one_to_one && ending == Ending::none;
    Message message{{.reset = worker.state.reset_number(),
                     .first = worker.sent,
                     .count = static_cast<std::uint32_t>(values.size()),
                     .ending = ending,
                     .marks = std::vector<std::int64_t>(values.size(), mark),
                     .reached = std::max({reached, worker.reached, mark + (announces ? 1 : 0)})},
                    std::move(values)};
    worker.sent += message.items.count;
    worker.reached = message.items.reached;
    worker.finished = ending != Ending::none;
    worker.pending = std::move(message);
  }

  // ---- distinguishing states

  static void add(ByteWriter& writer, const Message& message) {
    writer.put_sized(encode(message.items));
    for (const auto value : message.values) writer.put(value);
  }
  static void add(ByteWriter& writer, const std::optional<Message>& message) {
    writer.put(std::uint8_t{message.has_value()});
    if (message) add(writer, *message);
  }
  static void add(ByteWriter& writer, const ProcessState& state) {
    for (const auto number : {state.applied(), state.reset_number()}) writer.put(number);
  }
  template <typename T>
  static void add_queue(ByteWriter& writer, const std::vector<T>& queue) {
    writer.put(static_cast<std::uint32_t>(queue.size()));
    for (const T& each : queue) {
      if constexpr (std::is_same_v<T, Message>) add(writer, each);
      else writer.put_sized(encode(each));
    }
  }

  std::uint64_t key(const World& world) const {
    ByteWriter writer;
    writer.put(static_cast<std::uint64_t>(world.requested));
    for (const bool flag : {world.paused, world.shut, world.finished}) writer.put(flag);
    writer.put(world.commands.issued());
    for (int p = 0; p <= setup_.workers; ++p) writer.put(world.commands.acked(p));
    writer.put(world.merge.position().mark);
    writer.put(static_cast<std::int32_t>(world.merge.position().worker));
    for (const auto value : world.outputs) writer.put(value);
    for (const auto& queue : world.merge_queues) {
      writer.put(queue.applied);
      for (const auto value : queue.values) writer.put(value);
    }
    add(writer, world.dispatcher.state);
    writer.put(world.dispatcher.assigner.number());
    writer.put(world.dispatcher.ended);
    for (const auto& message : world.dispatcher.pending) add(writer, message);
    for (const auto& worker : world.workers) {
      add(writer, worker.state);
      for (const auto number :
           {worker.input.num_inputs(), worker.input.at_hand(), worker.made, worker.sent, worker.reached}) {
        writer.put(number);
      }
      writer.put(worker.input.ending());
      for (const bool flag : {worker.input.pulled_ending(), worker.finished}) writer.put(flag);
      add(writer, worker.pending);
      add(writer, worker.early);
    }
    for (const auto& queue : world.command_queues) add_queue(writer, queue);
    for (const auto& queue : world.ack_queues) add_queue(writer, queue);
    for (const auto& queue : world.dispatched) add_queue(writer, queue);
    for (const auto& queue : world.collected) add_queue(writer, queue);
    return hash64(writer.view());
  }

  static std::string describe(const World& world) {
    std::string text = "outputs";
    for (const auto value : world.outputs) text += " " + std::to_string(value);
    text += "; the consumer is at mark " + std::to_string(world.merge.position().mark) + " of worker " +
            std::to_string(world.merge.position().worker);
    for (const auto& worker : world.workers) {
      text += "; a worker has drawn " + std::to_string(worker.input.num_inputs()) + " and sent " +
              std::to_string(worker.sent) + (worker.pending ? ", one waits" : "");
    }
    return text + "; dispatched " + std::to_string(world.dispatcher.assigner.number());
  }

  Setup setup_;
  std::unordered_set<std::uint64_t> seen_;
  bool reached_end_ = false;
};

}  // namespace levada::pipeline::protocol::testing
