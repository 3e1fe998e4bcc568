#include "levada/pipeline/consumer.h"

#include <fmt/format.h>

#include "levada/base/trace.h"
#include "levada/pipeline/consumer_endpoint.h"

namespace levada::pipeline {
namespace {

constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();

/// Starts an epoch in the other processes, once the consumer's stages have been restored or need items to restore.
class EpochStart {
 public:
  EpochStart(ConsumerEndpoint& endpoint, std::int64_t epoch) : endpoint_(endpoint), epoch_(epoch) {}
  void restore(const Cursor& cursor) { cursor_ = cursor; }
  ConsumerEndpoint& begin() {
    if (!std::exchange(begun_, true)) endpoint_.reset(epoch_, cursor_);
    return endpoint_;
  }

 private:
  ConsumerEndpoint& endpoint_;
  std::int64_t epoch_;
  std::optional<Cursor> cursor_;
  bool begun_ = false;
};

/// The items of the workers, as the input of the consumer's stages.
class CollectedIterator final : public Iterator {
 public:
  explicit CollectedIterator(std::shared_ptr<EpochStart> start) : start_(std::move(start)) {}
  std::optional<Item> next() override { return start_->begin().next(); }
  Cursor save() const override { return start_->begin().save(); }
  void restore(const Cursor& cursor) override { start_->restore(cursor); }

 private:
  std::shared_ptr<EpochStart> start_;
};

void add(Stats& stats, const std::string& name, Role role, std::vector<protocol::StageTotals> stages) {
  stages.resize(stats.stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    stats.stages[i].items += stages[i].items;
    stats.stages[i].skipped += stages[i].skipped;
    stats.stages[i].busy_ns += stages[i].busy_ns;
    stats.stages[i].waited_ns += stages[i].waited_ns;
  }
  stats.processes.push_back({.name = name, .role = role, .stages = std::move(stages)});
}

}  // namespace

Consumer::Consumer(Process process)
    : process_(std::move(process)),
      placement_(place(process_.graph, process_.options.workers, process_.options.ordered)),
      counts_(process_.graph.stages().size()),
      log_(make_stage_log(process_.graph, process_.options)) {
  if (process_.engine && ProcessRanks::of(placement_, process_.options).size() > 1) {
    endpoint_ = std::make_unique<ConsumerEndpoint>(process_, placement_, log_.get());
  }
}

void Consumer::begin(std::int64_t epoch, const std::optional<Cursor>& cursor, std::int64_t behind) {
  if (epoch < 0) throw InvalidArgument(fmt::format("epoch must be 0 or more, got {}", epoch));
  if (behind < 0 || behind > max_count)
    throw InvalidArgument(fmt::format("the state is of item {}, which is out of range", behind));
  end_iterator();
  left_ = no_limit;
  paused_ = ended_ = failed_ = false;
  epoch_ = epoch;
  num_outputs_ = 0;
  const RuntimeOptions runtime_options{
      .traits = process_.traits,
      .open_context = make_open_context(
          process_.options.seed, epoch,
          {.rank = process_.options.rank, .ranks = process_.options.ranks, .workers = process_.options.workers}),
      .process = process_.name,
      .counts = counts_,
      .all_ranks = process_.all_ranks,
      .name_among_ranks = process_.name_among_ranks,
      .timeout = process_.options.timeout,
      .poll = process_.poll,
      .paused = &paused_,
      .snapshot_every = process_.options.snapshot_every,
      .log = log_.get()};
  if (process_.begin_epoch) process_.begin_epoch(runtime_options.open_context);
  std::map<int, IteratorPtr> instead;
  std::shared_ptr<EpochStart> start;
  if (endpoint_) {
    start = std::make_shared<EpochStart>(*endpoint_, epoch);
    instead.emplace(*placement_.collect_boundary, std::make_unique<CollectedIterator>(start));
  }
  IteratorPtr iterator = open(process_.graph, process_.graph.end(), runtime_options, std::move(instead));
  if (cursor) iterator->restore(stages_of(*cursor));
  const bool workers_resume = start && placement_.one_to_one && placement_.collect_boundary == process_.graph.end();
  if (behind > 0 && workers_resume) start->restore(ConsumerEndpoint::cursor_after(behind));
  if (start) start->begin();
  if (behind > 0 && !workers_resume) {
    const auto passed = iterator->skip(behind);
    if (passed < behind) throw_past_end(passed, "the epoch");
  }
  // Stages restored at their end have released their inputs.
  if (start.use_count() == 1) endpoint_->halt();
  iterator_ = std::move(iterator);
  const std::lock_guard lock(timing_);
  begun_ = Clock::now();
}

std::optional<Item> Consumer::next() {
  if (!iterator_) throw InvalidArgument("no epoch has begun; call reset() before next()");
  if (paused_ || left_ == 0) return std::nullopt;
  auto item = next_of_stages();
  if (!item) count_time();
  ended_ = !item && !failed_;
  if (item && left_ != no_limit) --left_;
  if (log_ && !endpoint_) log_->add(StageSample{trace_time(Clock::now()), num_outputs_ += item.has_value()});
  return item;
}

std::optional<Item> Consumer::next_of_stages() {
  try {
    return iterator_->next();
  } catch (...) {
    failed_ = true;
    throw;
  }
}

bool Consumer::lost_place() const {
  const bool only_collects = endpoint_ && placement_.collect_boundary == process_.graph.end();
  return failed_ && !only_collects;
}

void Consumer::limit(std::int64_t items) {
  if (items < 0) throw InvalidArgument(fmt::format("a limit must be 0 or more items, got {}", items));
  left_ = items;
}

void Consumer::pause() {
  // Paused even if the others have not acknowledged: resume() reverts the command.
  if (!paused_.exchange(true) && endpoint_) endpoint_->pause();
}

void Consumer::resume() {
  const auto clear_pause = [this] {
    paused_ = false;
    left_ = no_limit;
  };
  try {
    if (endpoint_ && paused_) endpoint_->resume();
  } catch (const PeerLost&) {  // next() also throws it
    clear_pause();
    throw;
  }
  clear_pause();
}

Cursor Consumer::save() const {
  if (!iterator_) throw InvalidArgument("no epoch has begun; call reset() before save()");
  if (lost_place()) {
    throw InvalidArgument("a pipeline has no cursor after a failure in this process; call reset() and skip its items");
  }
  return Tree::dict({{"epoch", Tree(epoch_)}, {"stages", iterator_->save()}});
}

bool Consumer::shutdown(Duration grace) {
  end_iterator();
  if (!endpoint_ || over_) return true;
  over_ = true;
  return endpoint_->shutdown(Deadline::after(grace));
}

Stats Consumer::stats() const {
  Stats stats;
  stats.seconds = std::chrono::duration<double>(time_spent()).count();
  stats.stages.resize(counts_.size());
  add(stats, process_.name, Role::consumer, totals_of(counts_));
  if (!endpoint_) return stats;
  const ProcessRanks ranks = ProcessRanks::of(placement_, process_.options);
  for (const protocol::Ack& ack : endpoint_->reports(false, std::chrono::seconds(2))) {
    const bool dispatches = ranks.has_dispatcher && stats.processes.size() == ProcessRanks::dispatcher;
    const protocol::ProcessTotals& totals = ack.totals;
    add(stats, ack.process, dispatches ? Role::dispatcher : Role::worker, totals.stages);
    stats.messages += totals.messages;
    stats.wakeups += totals.wakeups;
    stats.bytes += totals.bytes;
    stats.copied += totals.copied;
  }
  stats.wakeups += endpoint_->traffic().wakeups;
  stats.copied += endpoint_->traffic().copied;
  return stats;
}

std::vector<StageTrace> Consumer::traces() const {
  constexpr auto timeout = std::chrono::seconds(2);
  if (!log_)
    return std::vector<StageTrace>(static_cast<std::size_t>(ProcessRanks::of(placement_, process_.options).size()));
  std::vector<StageTrace> traces = {log_->trace()};
  if (!endpoint_) return traces;
  for (const protocol::Ack& ack : endpoint_->reports(true, timeout)) {
    auto of = ack.trace.empty() ? std::vector<StageTrace>(1) : decode_stage_traces(ack.trace);
    if (of.size() != 1) throw CorruptMessage(0, fmt::format("{} traces of one process", of.size()));
    traces.push_back(std::move(of.front()));
  }
  return traces;
}

Consumer::~Consumer() {
  try {
    shutdown(std::chrono::milliseconds(200));
  } catch (const std::exception&) {
    // The group has ended; no process is left to notify.
  }
  end_iterator();
}

const Tree& Consumer::stages_of(const Cursor& cursor) const {
  const auto* epoch = std::get_if<std::int64_t>(&cursor.at("epoch").leaf());
  if (epoch == nullptr || *epoch != epoch_) {
    throw InvalidArgument(fmt::format("this cursor is not of epoch {}", epoch_));
  }
  return cursor.at("stages");
}

void Consumer::end_iterator() {
  if (endpoint_) endpoint_->interrupt();
  iterator_.reset();
  count_time();
}

/// Called at the end of an epoch.
void Consumer::count_time() {
  const std::lock_guard lock(timing_);
  if (begun_) spent_ += Clock::now() - *begun_;
  begun_.reset();
}

Duration Consumer::time_spent() const {
  const std::lock_guard lock(timing_);
  return spent_ + (begun_ ? Clock::now() - *begun_ : Duration{});
}

}  // namespace levada::pipeline
