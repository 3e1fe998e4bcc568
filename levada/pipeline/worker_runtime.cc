#include "levada/pipeline/worker_runtime.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/threads.h"
#include "levada/base/trace.h"
#include "levada/engine/collect.h"
#include "levada/tree/codec.h"

namespace levada::pipeline {
namespace {

/// Throws InvalidArgument unless this process has a part in the pipeline.
ProcessRanks ranks_of(const Process& process, const Placement& placement) {
  const ProcessRanks ranks = ProcessRanks::of(placement, process.options);
  const EngineInfo& info = process.engine->info();
  if (info.size == ranks.size() && info.rank > 0) return ranks;
  throw InvalidArgument(
      fmt::format("rank {} of {} serves a pipeline that needs {} processes in addition to the consumer", info.rank,
                  info.size, ranks.others()));
}

constexpr auto watch_interval = std::chrono::milliseconds(500);
constexpr int max_workers = 4096;

}  // namespace

// ---- ProcessRanks

ProcessRanks ProcessRanks::of(const Placement& placement, const ProcessOptions& options) {
  if (options.workers < 0 || options.workers > max_workers) {
    throw InvalidArgument(fmt::format("{} workers; give 0 to {}", options.workers, max_workers));
  }
  if (options.workers == 0 || !placement.collect_boundary) return {};
  return {options.workers, placement.dispatch_boundary.has_value()};
}

std::string ProcessRanks::name(int rank) const {
  if (rank == 0) return "the consumer";
  if (has_dispatcher && rank == dispatcher) return "the dispatching process";
  return fmt::format("worker {}", rank - rank_of(0));
}

std::shared_ptr<Channel> ProcessRanks::open_commands(Engine& engine) const {
  std::vector<int> to;
  for (int rank = 1; rank < size(); ++rank) to.push_back(rank);
  // A command is sent once the previous one has been acknowledged, except Shutdown, which is sent at once.
  return engine.open(0, to, 4);
}

std::shared_ptr<Channel> ProcessRanks::open_acks(Engine& engine, int from) const {
  return engine.open(from, {0}, 8);
}

std::vector<protocol::StageTotals> totals_of(const Counts& counts) {
  std::vector<protocol::StageTotals> totals;
  for (const StageCounts& stage : counts) {
    totals.push_back({stage.items, stage.skipped, stage.busy_ns, stage.waited_ns});
  }
  return totals;
}

std::unique_ptr<StageLog> make_stage_log(const Graph& graph, const ProcessOptions& options) {
  constexpr std::size_t of_one = 50'000, of_all = 400'000;
  if (!options.record) return nullptr;
  const auto processes = static_cast<std::size_t>(options.workers) + 2;
  return std::make_unique<StageLog>(graph.stages().size(), std::min(of_one, of_all / processes));
}

EdgeOptions worker_edge(const ProcessOptions& options) {
  return {options.worker_prefetch, options.prefetch_bytes};
}

EdgeOptions main_edge(const ProcessOptions& options) {
  return {options.main_prefetch, options.prefetch_bytes};
}

bool workers_have_state(const Graph& graph, const Placement& placement) {
  for (std::size_t i = 0; i < graph.stages().size(); ++i) {
    const bool is_source = std::holds_alternative<Source>(graph.stages()[i].operation);
    if (is_source && placement.role_of[i] == Role::worker) return true;
  }
  return !placement.one_to_one;
}

// ---- failures, cursors

Failure failure_of(const std::exception_ptr& error, const std::string& process, std::int64_t item) {
  Failure failure = failure_of(error);
  if (failure.process.empty()) failure.process = process;
  if (failure.stage.empty()) failure.item = item;
  return failure;
}

bool SnapshotPace::is_due(std::int64_t position, Clock::time_point now) const {
  constexpr std::int64_t max_items = 128;
  constexpr auto max_time = std::chrono::milliseconds(1);
  constexpr int cost_part = 100;
  if (every_ > 0) return is_every(position);
  if (!last_) return true;
  return (position - position_ >= max_items || now - *last_ >= max_time) && now - *last_ >= cost_ * cost_part;
}

void SnapshotPace::saved(std::int64_t position, Clock::time_point begun, Clock::time_point ended) {
  position_ = position;
  last_ = ended;
  cost_ = ended - begun;
}

// ---- Watch

Watch::Watch(std::shared_ptr<Engine> engine, const Graph& graph, std::string process, const Counts& counts)
    : engine_(std::move(engine)), process_(std::move(process)), counts_(counts) {
  for (const Stage& stage : graph.stages()) stages_.push_back(stage.name);
  thread_ = start_thread("watching a pipeline", [this] { run(); });
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

void Watch::waits_for(int rank) {
  if (waiting_.exchange(true, std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  seen_ = -1;
  engine_->post(Status::make("pipeline", -1, rank, process_));
}

void Watch::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, watch_interval, [this] { return stopping_; })) {
    try {
      if (!waiting_.load(std::memory_order_relaxed)) look();
    } catch (const Error&) {
      return;  // the group has ended; no rank reads the board any more
    }
  }
}

void Watch::look() {
  const int at = at_.load(std::memory_order_relaxed);
  if (at < 0 || at >= static_cast<int>(stages_.size())) return;
  const auto stage = static_cast<std::size_t>(at);
  const std::int64_t items = counts_[stage].items.load(std::memory_order_relaxed);
  const std::int64_t now = items * static_cast<std::int64_t>(stages_.size()) + at;
  if (std::exchange(seen_, now) != now) engine_->post(Status::make(stages_[stage], items, -1, process_));
}

// ---- WorkerRuntime

WorkerRuntime::WorkerRuntime(const Process& process)
    : process_(process),
      placement_(place(process.graph, process.options.workers, process.options.ordered)),
      ranks_(ranks_of(process, placement_)),
      counts_(process.graph.stages().size()),
      log_(make_stage_log(process.graph, process.options)),
      command_channel_(ranks_.open_commands(*process.engine)),
      ack_channel_(ranks_.open_acks(*process.engine, process.engine->info().rank)),
      watch_(process.engine, process.graph, process.name, counts_) {
  acknowledge(0, false);
}

RuntimeOptions WorkerRuntime::runtime_options(const Copy& copy) {
  return {.traits = process_.traits,
          .open_context = make_open_context(process_.options.seed, state_.reset().epoch, copy),
          .process = process_.name,
          .counts = counts_,
          .all_ranks = nullptr,
          .poll = [this] { attend(); },
          .paused = &paused_,
          .snapshot_every = process_.options.snapshot_every,
          .snapshot_time = &snapshot_time_,
          .at = watch_.at(),
          .log = log_.get()};
}

bool WorkerRuntime::begin_epoch() {
  while (!left_ && !state_.over()) {
    if (state_.reset_number() != begun_) {
      begun_ = state_.reset_number();
      return true;
    }
    wait_once({}, {}, 0, 0);
  }
  return false;
}

void WorkerRuntime::attend() {
  receive_commands();
  while (state_.paused() && !interrupted()) wait_once({}, {}, 0, 0);
  if (interrupted()) throw Interrupted();
}

void WorkerRuntime::receive_commands() {
  while (true) {
    const auto received = engine().try_receive(*command_channel_);
    if (!received.message) {
      left_ = received.ended && !state_.over();
      return;
    }
    const auto command = decode<protocol::Command>(received.message->bytes);
    state_.apply(command);
    paused_ = state_.paused();
    const auto* report = std::get_if<protocol::Report>(&command.what);
    acknowledge(state_.applied(), state_.over() || (report != nullptr && report->with_trace));
  }
}

void WorkerRuntime::wait(const std::vector<Channel*>& receive, const std::vector<Channel*>& publish, std::size_t memory,
                         int rank) {
  wait_once(receive, publish, memory, rank);
  attend();
}

void WorkerRuntime::wait_once(const std::vector<Channel*>& receive, const std::vector<Channel*>& publish,
                              std::size_t memory, int rank) {
  const auto work = !publish.empty()   ? StageWork::room
                    : memory > 0       ? StageWork::memory
                    : !receive.empty() ? StageWork::input
                                       : StageWork::idle;
  const StageScope scope(log(), work, work == StageWork::input || work == StageWork::room ? rank : -1);
  std::vector<Channel*> channels = receive;
  channels.push_back(command_channel_.get());
  watch_.waits_for(rank);
  const WaitFor conditions{.receive = channels, .publish = publish, .allocate = memory, .poll = &process_.poll};
  if (engine().wait(conditions, Deadline::after(std::chrono::seconds(10))) == Woken::ready) {
    traffic_.wakeups.fetch_add(1, std::memory_order_relaxed);
    receive_commands();
  }
  watch_.works();
}

Failure WorkerRuntime::cannot_pack(int stage, std::int64_t item, const std::exception_ptr& cause) const {
  Failure failure = failure_of(cause, process_.name, item);
  failure.stage = process_.graph.stage(stage).name;
  return failure;
}

void WorkerRuntime::send(std::span<const std::unique_ptr<ItemSender>> outgoing) {
  for (;;) {
    std::vector<Channel*> room;
    std::size_t memory = 0;
    int rank = 0;
    {
      const StageScope scope(log(), StageWork::pack);
      for (const auto& each : outgoing) {
        if (each->try_send()) continue;
        const ItemSender::Needs needs = each->needs();
        if (needs.room != nullptr) room.push_back(needs.room);
        else memory = needs.memory;
        rank = each->to();
      }
    }
    if (room.empty() && memory == 0) return;
    wait({}, room, memory, rank);
  }
}

protocol::ProcessTotals WorkerRuntime::totals() const {
  return {.stages = totals_of(counts_),
          .messages = traffic_.messages,
          .wakeups = traffic_.wakeups,
          .bytes = traffic_.bytes,
          .copied = traffic_.copied};
}

void WorkerRuntime::count_sent(std::int64_t items) {
  if (log_) log_->add(StageSample{trace_time(Clock::now()), items});
}

void WorkerRuntime::acknowledge(std::uint64_t command, bool with_trace) {
  protocol::Ack ack{.number = command, .process = process_.name, .totals = totals(), .trace = {}};
  if (log_ && with_trace) {
    const auto trace = log_->trace();
    ack.trace = levada::encode(std::span(&trace, 1));
  }
  const Bytes bytes = encode(ack);
  const auto deadline = Deadline::after(process_.options.timeout);
  Block block = allocate(engine(), bytes.size(), deadline, "pipeline");
  std::ranges::copy(bytes, block.memory().begin());
  publish(engine(), *ack_channel_, std::move(block), bytes.size(), deadline, "pipeline");
}

void serve(const Process& process) {
  WorkerRuntime runtime(process);
  const ProcessRanks& ranks = runtime.ranks();
  const int rank = process.engine->info().rank;
  try {
    if (ranks.has_dispatcher && rank == ProcessRanks::dispatcher) dispatch(runtime);
    else work(runtime, rank - ranks.rank_of(0));
  } catch (const PeerLost&) {
    throw;
  } catch (const std::exception& error) {
    // Before the runtime is destroyed: otherwise the other processes would see this one leave without its reason.
    process.engine->abort(fmt::format("{}: {}", process.name, error.what()));
    throw;
  }
}

}  // namespace levada::pipeline
