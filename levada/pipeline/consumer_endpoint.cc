#include "levada/pipeline/consumer_endpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "levada/base/trace.h"
#include "levada/engine/collect.h"
#include "levada/pipeline/cursors.h"

namespace levada::pipeline {
namespace {

using protocol::DispatcherSnapshot;
using protocol::OrderedMerge;
using protocol::WorkerSnapshot;

constexpr auto ack_interval = std::chrono::milliseconds(250);
constexpr auto until_a_cause_arrives = std::chrono::seconds(1);
/// The name of the cursor in messages.
constexpr std::string_view cursor_name = "in the workers";

/// Returns how many of items [0, num_outputs) go to `worker`.
std::int64_t share_of(std::int64_t num_outputs, int worker, int workers) {
  return (num_outputs - worker + workers - 1) / workers;
}

}  // namespace

ConsumerEndpoint::ConsumerEndpoint(const Process& process, const Placement& placement, StageLog* log)
    : process_(process),
      placement_(placement),
      ranks_(ProcessRanks::of(placement, process.options)),
      has_state_(workers_have_state(process.graph, placement)),
      log_(log),
      command_channel_(ranks_.open_commands(*process.engine)),
      command_log_(ranks_.others()),
      last_acks_(static_cast<std::size_t>(ranks_.others())),
      left_(static_cast<std::size_t>(ranks_.others())),
      unstarted_(ranks_.others()) {
  for (int rank = 1; rank < ranks_.size(); ++rank) {
    last_acks_[static_cast<std::size_t>(rank - 1)].process = ranks_.name(rank);
    ack_channels_.push_back(ranks_.open_acks(*process.engine, rank));
  }
  for (int w = 0; w < workers(); ++w) {
    receivers_.emplace_back(process.engine, ranks_.rank_of(w), main_edge(process.options), traffic_);
  }
}

// ---- names

std::string ConsumerEndpoint::name(int rank) const {
  const std::lock_guard lock(control_);
  if (rank < 0 || rank >= ranks_.size()) return fmt::format("rank {}", rank);
  return rank == 0 ? ranks_.name(0) : last_acks_[static_cast<std::size_t>(rank - 1)].process;
}

/// Returns the result of `call`. Adds the process's name to a PeerLost.
template <typename Call>
auto ConsumerEndpoint::named(const Call& call) {
  try {
    return call();
  } catch (const PeerLost& lost) {
    try {  // From that process only: receiving from another that has sent nothing would throw first.
      if (lost.rank() > 0) receive_acks_of(lost.rank() - 1);
    } catch (const Error&) {
      // All acknowledgements before the loss have been received.
    }
    throw PeerLost(lost.rank(),
                   fmt::format("{} of the pipeline ended unexpectedly: {}", name(lost.rank()), lost.what()));
  }
}

// ---- commands

void ConsumerEndpoint::receive_acks() {
  for (int process = 0; process < ranks_.others(); ++process) receive_acks_of(process);
}

void ConsumerEndpoint::receive_acks_of(int process) {
  const auto index = static_cast<std::size_t>(process);
  const std::lock_guard taking(receiving_acks_);
  while (true) {
    const auto received = process_.engine->try_receive(*ack_channels_[index]);
    if (received.ended) {
      const std::lock_guard lock(control_);
      left_[index] = true;
    }
    if (!received.message) return;
    protocol::Ack ack = decode<protocol::Ack>(received.message->bytes);
    const std::lock_guard lock(control_);
    if (ack.number > 0) command_log_.apply(process, ack);
    else --unstarted_;
    if (ack.trace.empty()) ack.trace = std::move(last_acks_[index].trace);
    last_acks_[index] = std::move(ack);
  }
}

void ConsumerEndpoint::await_acks(Deadline deadline) {
  const auto begun = Clock::now();
  Reminder reminder(process_.options.remind_after);
  const auto number = [this] {
    const std::lock_guard lock(control_);
    return command_log_.issued();  // other threads may issue more in the meantime
  }();
  for (;;) {
    const bool last_look = deadline.expired();
    receive_acks();
    const auto missing = unacked(number);
    if (missing.empty()) return;
    const int rank = missing.front()->from();
    const auto explain = [&] {
      return fmt::format("{} did not answer: {}", name(rank),
                         explain_wait(*process_.engine, "pipeline", rank, Clock::now() - begun));
    };
    if (last_look) throw Timeout(explain());
    // In slices, since the thread that takes items may receive the answer.
    const auto slice = Deadline::after(std::min(deadline.remaining(), Duration(ack_interval)));
    const WaitFor conditions{.receive = missing, .poll = &process_.poll};
    if (reminder.wait(*process_.engine, conditions, slice, explain) == Woken::ready) {
      traffic_.wakeups.fetch_add(1, std::memory_order_relaxed);
      receive_acks_of(rank - 1);
      if (has_left(rank)) throw_left(rank);
    }
  }
}

std::vector<Channel*> ConsumerEndpoint::unacked(std::uint64_t number) const {
  std::vector<Channel*> missing;
  const std::lock_guard lock(control_);
  for (std::size_t i = 0; i < ack_channels_.size(); ++i) {
    if (last_acks_[i].number < number) missing.push_back(ack_channels_[i].get());
  }
  return missing;
}

bool ConsumerEndpoint::has_left(int rank) const {
  const std::lock_guard lock(control_);
  return left_[static_cast<std::size_t>(rank - 1)] && !command_log_.acked(rank - 1);
}

void ConsumerEndpoint::throw_left(int rank) {
  // Its channels end before the engine knows the cause; if it learns it in time, this throws it.
  process_.engine->wait({}, Deadline::after(until_a_cause_arrives));
  throw EngineError(fmt::format("{} left the pipeline before the consumer shut it down", name(rank)));
}

void ConsumerEndpoint::publish_command(decltype(protocol::Command::what) what, Deadline deadline) {
  const std::lock_guard one_after_the_other(issuing_);
  if (over_) throw InvalidArgument("the pipeline has been shut down and accepts no more commands");
  over_ = std::holds_alternative<protocol::Shutdown>(what);
  // Only a command for which there is memory gets a number: receivers expect consecutive ones.
  const std::size_t size = encode(protocol::Command{command_log_.issued() + 1, what}).size();
  Block block = allocate(*process_.engine, size, deadline, "pipeline");
  const Bytes bytes = [&] {
    const std::lock_guard lock(control_);
    return encode(command_log_.issue(std::move(what)));
  }();
  std::ranges::copy(bytes, block.memory().begin());
  publish(*process_.engine, *command_channel_, std::move(block), bytes.size(), deadline, "pipeline");
}

bool ConsumerEndpoint::all_acked() const {
  const std::lock_guard lock(control_);
  return command_log_.all_acked();
}

void ConsumerEndpoint::issue_command(decltype(protocol::Command::what) what, Deadline deadline) {
  named([&] {
    await_acks(deadline);
    publish_command(std::move(what), deadline);
  });
}

void ConsumerEndpoint::reset(std::int64_t epoch, const std::optional<Cursor>& cursor) {
  ResumePoint from;
  if (cursor) from = resume_point(*cursor);
  protocol::Reset reset{
      .epoch = epoch, .dispatcher = from.dispatcher, .workers = from.workers, .mark = from.position.mark};
  issue_command(std::move(reset), deadline_from_now());
  reset_number_ = command_log_.issued();
  merge_ = OrderedMerge(workers(), from.position);
  outputs_before_ = from.num_outputs;
  snapshots_.clear();
  snapshots_.keep_from(from.dispatcher.number);
  snapshots_.add(from.dispatcher.number, Tree(from.dispatcher.cursor));
  queues_.assign(receivers_.size(), {});
  for (std::size_t w = 0; w < from.workers.size(); ++w) queues_[w].snapshot = from.workers[w];
  halted_ = false;
  paused_ = false;
  interrupted_ = false;
  wakes_ = false;
}

void ConsumerEndpoint::pause() {
  paused_ = true;
  wakes_ = true;
  process_.engine->wake();
  issue_command(protocol::Pause{}, deadline_from_now());
  named([this] { await_acks(deadline_from_now()); });
}

void ConsumerEndpoint::resume() {
  issue_command(protocol::Resume{}, deadline_from_now());
  paused_ = false;
  wakes_ = true;
  process_.engine->wake();
}

bool ConsumerEndpoint::shutdown(Deadline deadline) {
  try {
    receive_acks();
    publish_command(protocol::Shutdown{}, deadline);
    await_acks(deadline);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void ConsumerEndpoint::halt() {
  if (std::exchange(halted_, true)) return;
  receive_acks();
  if (all_acked()) publish_command(protocol::Pause{}, deadline_from_now());
}

std::vector<protocol::Ack> ConsumerEndpoint::reports(bool with_trace, Duration timeout) {
  try {
    receive_acks();
    const auto deadline = Deadline::after(timeout);
    if (with_trace && !over_) await_acks(deadline);  // for an earlier command, whose acks have no trace
    if (all_acked() && !over_) publish_command(protocol::Report{with_trace}, deadline_from_now());
    if (!over_) await_acks(deadline);
  } catch (const Error&) {
    // Returns the last acknowledgements instead.
  }
  const std::lock_guard lock(control_);
  return last_acks_;
}

void ConsumerEndpoint::interrupt() {
  interrupted_ = true;
  wakes_ = true;
  process_.engine->wake();
}

// ---- items

std::optional<Item> ConsumerEndpoint::next() {
  for (;;) {
    const OrderedMerge::Step step = merge_.next();
    WorkerQueue& queue = queues_[static_cast<std::size_t>(merge_.worker())];
    switch (step) {
      case OrderedMerge::Step::pull: merge_.pulled(); return std::move(queue.items[queue.next++]);
      case OrderedMerge::Step::wait: fetch(merge_.worker()); break;
      case OrderedMerge::Step::failed: halt(); throw StageFailed(queue.failure.value_or(Failure{}));
      case OrderedMerge::Step::ended:
        if (merge_.any_left()) halt();
        return std::nullopt;
    }
  }
}

void ConsumerEndpoint::fetch(int worker) {
  ItemReceiver& receiver = receivers_[static_cast<std::size_t>(worker)];
  ItemWait wait = item_wait();
  for (;;) {
    if (interrupted_) throw WorkerRuntime::Interrupted();
    if (paused_) {
      wait_while_paused();
      wait = item_wait();
    }
    auto arrival = named([&] { return receiver.try_receive(); });
    if (!arrival) {
      const auto woken = named([&] { return wait_for(worker, wait); });
      if (woken == Woken::stopped) wait = item_wait();  // the others resume after a pause, so the time starts anew
      continue;
    }
    if (arrival->items.reset > reset_number_)
      throw CorruptMessage(0, "a worker of the pipeline sent items of an epoch that has not begun");
    if (arrival->items.reset == reset_number_) return use(worker, *std::move(arrival));
  }
}

void ConsumerEndpoint::use(int worker, ItemReceiver::Arrival arrival) {
  WorkerQueue& queue = queues_[static_cast<std::size_t>(worker)];
  protocol::Items& items = arrival.items;
  if (items.snapshot) {
    queue.snapshot = *std::move(items.snapshot);
    queue.snapshot_outputs = merge_.num_outputs(worker);
  }
  if (!items.dispatcher_snapshots.empty()) snapshots_.keep_from(needed());
  for (DispatcherSnapshot& snapshot : items.dispatcher_snapshots) {
    snapshots_.add(snapshot.number, Tree(std::move(snapshot.cursor)));
  }
  queue.failure = std::move(items.failure);
  merge_.apply(worker, items);
  queue.next = 0;
  queue.items.clear();
  if (log_ != nullptr) log_->add(StageSample{trace_time(Clock::now()), outputs_before_ + merge_.num_outputs()});
  try {
    const StageScope scope(log_, StageWork::unpack);
    queue.items = receivers_[static_cast<std::size_t>(worker)].unpack(std::move(arrival), process_.traits);
  } catch (const std::exception&) {
    throw StageFailed(failure_of(std::current_exception(), process_.name, outputs_before_ + merge_.num_outputs()));
  }
}

Woken ConsumerEndpoint::wait_for(int worker, ItemWait& wait) {
  if (unstarted_ > 0) receive_acks();  // if one is lost, the error then has its name
  const ItemReceiver& receiver = receivers_[static_cast<std::size_t>(worker)];
  const auto channels = receiver.channels();
  const int rank = receiver.from();
  const StageScope scope(log_, StageWork::input, rank);
  const auto explain = [&] {
    receive_acks();
    const auto& timeout = process_.options.timeout;
    const auto waited = timeout - std::min(timeout, wait.deadline.remaining());
    return fmt::format("no item arrived from {}: {}", name(rank),
                       explain_wait(*process_.engine, "pipeline", rank, waited));
  };
  const WaitFor conditions{.receive = channels, .stop = &wakes_, .poll = &process_.poll};
  const auto woken = wait.reminder.wait(*process_.engine, conditions, wait.deadline, explain);
  if (woken == Woken::ready) traffic_.wakeups.fetch_add(1, std::memory_order_relaxed);
  if (woken == Woken::stopped && !interrupted_) wakes_ = false;
  if (woken == Woken::ready && receiver.ended()) throw_left(rank);
  if (woken != Woken::timeout || paused_) return woken;
  throw Timeout(explain());
}

void ConsumerEndpoint::wait_while_paused() {
  while (paused_ && !interrupted_) {
    process_.engine->wait({.stop = &wakes_, .poll = &process_.poll}, Deadline::never());
    if (!interrupted_) wakes_ = false;
  }
  if (interrupted_) throw WorkerRuntime::Interrupted();
}

// ---- cursors

std::int64_t ConsumerEndpoint::needed() const {
  if (!has_state_) return outputs_before_ + merge_.num_outputs();
  auto least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t w = 0; w < queues_.size(); ++w) {
    least = std::min(least, queues_[w].snapshot.num_inputs * workers() + static_cast<std::int64_t>(w));
  }
  return least;
}

Cursor ConsumerEndpoint::save() const {
  const auto number = [](std::int64_t value) { return Tree(value); };
  std::vector<Tree> parts;
  for (std::size_t w = 0; has_state_ && w < queues_.size(); ++w) {
    const WorkerQueue& queue = queues_[w];
    const std::int64_t drop = queue.snapshot.drop + merge_.num_outputs(static_cast<int>(w)) - queue.snapshot_outputs;
    parts.push_back(Tree::dict({{"stage", Tree(std::string(cursor_name))},
                                {"num_inputs", number(queue.snapshot.num_inputs)},
                                {"num_outputs", number(queue.snapshot.num_outputs)},
                                {"drop", number(drop)},
                                {"cursor", Tree(queue.snapshot.cursor)}}));
  }
  auto [cursor, skip] = snapshots_.at(needed());
  return Tree::dict({{"stage", Tree(std::string(cursor_name))},
                     {"workers", number(workers())},
                     {"num_outputs", number(outputs_before_ + merge_.num_outputs())},
                     {"mark", number(merge_.position().mark)},
                     {"worker", number(merge_.position().worker)},
                     {"number", number(needed() - skip)},
                     {"cursor", std::move(cursor)},
                     {"parts", Tree::list(std::move(parts))}});
}

// The cursor of a run without workers.
Cursor ConsumerEndpoint::cursor_after(std::int64_t items) {
  return Tree::dict({{"stage", Tree(std::string(cursor_name))},
                     {"workers", 0},
                     {"num_outputs", Tree(items)},
                     {"number", 0},
                     {"cursor", Tree(Bytes{})}});
}

ConsumerEndpoint::ResumePoint ConsumerEndpoint::resume_point_anywhere(std::int64_t num_outputs,
                                                                      const DispatcherSnapshot& snapshot) const {
  ResumePoint from{.num_outputs = num_outputs,
                   .position = {num_outputs / workers() + 1, static_cast<int>(num_outputs % workers())}};
  if (!has_state_) from.dispatcher = snapshot;
  for (int w = 0; w < workers(); ++w) {
    const std::int64_t share = share_of(num_outputs, w, workers());
    // Without cursors, workers make the items again that the consumer already has.
    from.workers.push_back(has_state_ ? WorkerSnapshot{.drop = share}
                                      : WorkerSnapshot{.num_inputs = share, .num_outputs = share});
  }
  return from;
}

ConsumerEndpoint::ResumePoint ConsumerEndpoint::resume_point(const Cursor& cursor) const {
  const CursorFields fields(cursor, cursor_name);
  const DispatcherSnapshot snapshot{fields.count("number"), fields.bytes("cursor")};
  const std::int64_t num_outputs = fields.count("num_outputs");
  const std::int64_t saved_workers = fields.count("workers");
  if (snapshot.number > num_outputs && !has_state_)
    fields.fail(fmt::format("it is of item {} of {}", snapshot.number, num_outputs));
  if (!has_state_ || (saved_workers != workers() && placement_.one_to_one))
    return resume_point_anywhere(num_outputs, snapshot);
  const auto& parts = list_in_cursor(fields.at("parts"), cursor_name);
  if (saved_workers != workers() || static_cast<std::int64_t>(parts.size()) != workers()) {
    throw InvalidArgument(fmt::format(
        "this cursor was saved with {} workers whose stages are not one-to-one, so it cannot be divided among "
        "{}; resume with as many workers",
        saved_workers, workers()));
  }
  ResumePoint from{.num_outputs = num_outputs, .dispatcher = snapshot};
  from.position = {fields.count("mark"), static_cast<int>(fields.count("worker") % workers())};
  for (const Tree& part : parts) {
    const CursorFields of(part, cursor_name);
    from.workers.push_back({of.count("num_inputs"), of.count("num_outputs"), of.count("drop"), of.bytes("cursor")});
  }
  return from;
}

}  // namespace levada::pipeline
