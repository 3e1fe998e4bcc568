#include "levada/feed/reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/assert.h"
#include "levada/base/threads.h"
#include "levada/engine/collect.h"
#include "levada/feed/feed.h"

namespace levada {
namespace {

/// Interval at which a waiting reader checks which rank it waits for.
constexpr Duration until_looked_again = std::chrono::milliseconds(100);

}  // namespace

FeedReader::FeedReader(const FeedWiring& wiring, Reporter& reporter, FeedRounds rounds, const FeedOptions& options)
    : wiring_(wiring),
      reporter_(reporter),
      rounds_(std::move(rounds)),
      timeout_(options.timeout),
      remind_after_(options.remind_after),
      trace_(options.trace),
      ahead_(options.ahead) {
  if (wiring_.rank() == wiring_.lead()) lead_.emplace(wiring_, rounds_.source().difference_remedy(), ahead_);
  rounds_.on_wait(lead_ && ahead_ ? [this] { lead_meanwhile(); } : std::function<void()>());
  try {
    thread_ = start_thread("reading ahead", [this] { run(); });
  } catch (const EngineError& error) {
    wiring_.engine->abort(fmt::format("rank {} cannot read: {}", wiring_.rank(), error.what()));
    throw;
  }
}

FeedReader::~FeedReader() {
  stop();
}

bool FeedReader::read_now(std::int64_t round, const std::function<void()>& waiting) {
  if (ahead_) return false;
  std::unique_lock lock(driving_);
  // The thread sends rounds that wait for room, decisions and reports: only one thread at a time may use an end of a
  // channel.
  if (round != next_.round || reported_end_ || !prepared_.empty() || (lead_ && lead_->has_end())) return false;
  try {
    if (lead_) lead_->advance(holds_stop());  // reports departures promptly even to a caller that is never idle
    const bool may_read = !lead_ || !lead_->has_end();
    waiting_ = waiting;
    if (may_read) read_round(lock);
    if (!prepared_.empty()) send_round();
    if (lead_) lead_->advance(holds_stop());
  } catch (const Interrupted&) {
    std::rethrow_exception(std::exchange(thrown_, nullptr));
  } catch (const PeerLost&) {
    throw;
  } catch (const std::exception& error) {
    wiring_.engine->abort(fmt::format("rank {} cannot continue reading: {}", wiring_.rank(), error.what()));
    throw;
  }
  post("computing before", -1, {});
  const bool has_news = lead_ ? lead_->has_news() : bool(reporter_.send(std::nullopt));
  if (!has_news && !reported_end_ && prepared_.empty()) return true;
  has_news_.store(true);
  wiring_.engine->wake();
  return true;
}

void FeedReader::stop() {
  stop_.store(true);
  has_news_.store(true);
  wiring_.engine->wake();
  if (thread_.joinable()) thread_.join();
}

void FeedReader::add_to(FeedStats& stats) const {
  const std::lock_guard lock(stats_mutex_);
  stats.read = stats_;
  stats.sent_bytes = sent_bytes_;
}

void FeedReader::run() noexcept {
  try {
    while (!stop_.load()) {
      has_news_.store(false);
      WaitSet next;
      {
        std::unique_lock lock(driving_);
        if (finished()) return;
        if (advance(lock)) continue;
        if (finished()) return;
        next = wait_set();
      }
      if (!stop_.load()) wait(next);
    }
  } catch (const Interrupted&) {
  } catch (const PeerLost&) {
    // This rank's own calls throw it as well.
  } catch (const std::exception& error) {
    wiring_.engine->abort(fmt::format("rank {} cannot continue reading: {}", wiring_.rank(), error.what()));
  }
}

bool FeedReader::finished() const {
  // The lead continues to forward departures.
  return !lead_ && reported_end_ && !reporter_.send(std::nullopt);
}

bool FeedReader::advance(std::unique_lock<std::mutex>& driving) {
  if (lead_) lead_->advance(holds_stop());
  reporter_.send(std::nullopt);
  if (is_reading_) return false;
  if (lead_ && lead_->has_end()) {
    prepared_.clear();
    return false;
  }
  if (!prepared_.empty()) return send_round();
  if (reported_end_ || !ahead_) return false;
  read_round(driving);
  return true;
}

void FeedReader::lead_meanwhile() {
  const std::lock_guard lock(driving_);
  lead_->advance();
}

void FeedReader::read_round(std::unique_lock<std::mutex>& driving) {
  post("reading", -1, rounds_.source().activity());
  sample_memory();
  is_reading_ = true;
  if (!rounds_.is_interrupted()) round_bytes_ = 0;
  driving.unlock();
  std::vector<FeedRounds::Outgoing> read;
  std::exception_ptr error;
  try {
    read = rounds_.read([this](std::size_t bytes) { return allocate(bytes); });
  } catch (...) {
    error = std::current_exception();
  }
  driving.lock();
  is_reading_ = false;
  if (error) std::rethrow_exception(error);
  prepared_ = std::move(read);
  sample_memory();
  {
    const std::lock_guard lock(stats_mutex_);
    stats_ = rounds_.source().stats();
  }
  if (rounds_.abandoned()) report(feed_protocol::Left{wiring_.rank(), next_, {}});
  else if (rounds_.ended()) report(feed_protocol::Stopped{wiring_.reader_index(), *rounds_.ended()});
  reported_end_ = rounds_.abandoned() || rounds_.ended();
}

bool FeedReader::send_round() {
  // Sends to all audiences or to none, so that all of them stop at the same step.
  const bool has_room = full_channel() == nullptr;
  {
    const bool is_complete = prepared_.front().batch == nullptr;
    const TraceScope scope(is_complete ? nullptr : trace_, TraceThread::reader, TraceKind::pack, next_.round);
    for (auto& outgoing : prepared_) {
      outgoing.complete();
      // Waits only if messages of another channel have taken the room since.
      if (!has_room) continue;
      const auto bytes = outgoing.packed.bytes;
      publish(*wiring_.engine, outgoing.channel(), std::move(outgoing.packed.block), bytes, Deadline::after(timeout_),
              "the feed");
      const std::lock_guard lock(stats_mutex_);
      sent_bytes_ += bytes;
    }
  }
  if (!has_room) return false;
  prepared_.clear();
  LEVADA_ASSERT(rounds_.next().round == next_.round + 1, "each round is sent once, and none is left out");
  next_ = rounds_.next();
  report(feed_protocol::Ready{wiring_.reader_index(), next_, rounds_.division(), rounds_.take_digests()});
  return true;
}

void FeedReader::report(const feed_protocol::Event& event) {
  if (lead_) lead_->apply(event);
  else reporter_.send(event);
}

Channel* FeedReader::full_channel() {
  const auto is_full = [&](Channel* channel) {
    return wiring_.engine->wait({.publish = std::span(&channel, 1)}, Deadline::now()) != Woken::ready;
  };
  // The slowest channel is likely to stay the slowest: waiting for it takes only one wake-up.
  if (slowest_ != nullptr && is_full(slowest_)) return slowest_;
  const auto found =
      std::ranges::find_if(prepared_, [&](const auto& outgoing) { return is_full(&outgoing.channel()); });
  if (found == prepared_.end()) return nullptr;
  return slowest_ = &found->channel();
}

FeedReader::WaitSet FeedReader::wait_set() {
  WaitSet awaited;
  if (lead_) {
    awaited.reports = lead_->open_reports();
    if (lead_->has_news()) awaited.add(lead_->blocked());
  } else {
    awaited.add(reporter_.send(std::nullopt));
  }
  if (is_reading_) return awaited;
  if (prepared_.empty()) {
    if (!ahead_ && !reported_end_) post("computing before", -1, {});
    return awaited;
  }
  awaited.held = next_.round;
  if (Channel* const full = full_channel()) {
    awaited.room.push_back(full);
    awaited.slow = post_full();
  } else {
    for (const auto& outgoing : prepared_) awaited.room.push_back(&outgoing.channel());  // room has been freed since
  }
  return awaited;
}

void FeedReader::wait(const WaitSet& awaited) {
  const TraceScope scope(awaited.held ? trace_ : nullptr, TraceThread::reader, TraceKind::room,
                         awaited.held.value_or(0), awaited.slow);
  const WaitFor conditions{
      .receive = awaited.reports, .publish = awaited.room, .allocate = awaited.memory, .stop = &has_news_};
  if (awaited.slow < 0) {
    wiring_.engine->wait(conditions, Deadline::never());
    return;
  }
  // When the wait began, a whole audience may have been as far behind as the one rank that still is.
  while (wiring_.engine->wait(conditions, Deadline::after(until_looked_again)) == Woken::timeout) post_full();
}

int FeedReader::post_full() const {
  Engine::Holder furthest{.rank = -1};
  for (const auto& outgoing : prepared_) {
    for (const auto& holder : wiring_.engine->holders(outgoing.channel())) {
      if (holder.not_received > furthest.not_received) furthest = holder;
    }
  }
  if (furthest.rank < 0) return -1;
  post(full_operation, furthest.rank,
       fmt::format("rank {} has not received the last {} of its batches", furthest.rank, furthest.not_received));
  return furthest.rank;
}

void FeedReader::sample_memory() const {
  if (trace_ == nullptr) return;
  trace_->add({.step = next_.round, .time_ns = trace_time(Clock::now()), .bytes = wiring_.engine->memory_in_use()});
}

Block FeedReader::allocate(std::size_t bytes) {
  Engine& engine = *wiring_.engine;
  const auto begin = Clock::now();
  const auto deadline = Deadline::after(timeout_);
  std::vector<Channel*> sent;
  for (const auto& channel : wiring_.data) {
    if (channel && channel->from() == wiring_.rank()) sent.push_back(channel.get());
  }
  const auto explain = [&] { return explain_full_memory(engine, bytes, "the feed", Clock::now() - begin, sent); };
  Reminder reminder(remind_after_);
  while (true) {
    if (auto block = engine.try_allocate(bytes)) {
      round_bytes_ += block->memory().size();
      return std::move(*block);
    }
    expect_to_fit(bytes, sent);
    post("waiting for memory", -1, explain());
    const TraceScope scope(trace_, TraceThread::reader, TraceKind::memory, next_.round);
    const auto until = Deadline::after(std::min(until_looked_again, deadline.remaining()));
    const Woken woken = reminder.wait(engine, {.allocate = bytes, .stop = &stop_}, until, explain);
    if (woken == Woken::stopped) throw Interrupted{};
    if (deadline.expired()) throw Timeout(explain());
    if (lead_ && ahead_) lead_meanwhile();
    if (waiting_) call_waiting();
  }
}

void FeedReader::expect_to_fit(std::size_t bytes, std::span<Channel* const> sent) {
  Engine& engine = *wiring_.engine;
  const bool is_held = std::ranges::any_of(sent, [&](Channel* channel) { return !engine.holders(*channel).empty(); });
  if (is_held) return;
  try {
    static_cast<void>(engine.try_allocate(std::min(round_bytes_, engine.memory_in_use()) + bytes));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        fmt::format("the messages of {} cannot be in memory together: {}", to_string(next_), error.what()));
  }
}

void FeedReader::call_waiting() {
  try {
    waiting_();
  } catch (...) {
    thrown_ = std::current_exception();
    throw Interrupted{};  // cannot be mistaken for a failure of the source
  }
}

void FeedReader::post(std::string_view operation, int waiting_for, std::string_view detail) const {
  auto status = Status::make(operation, next_.step, waiting_for, detail);
  if (posted_.operation == status.operation && posted_.step == status.step) status.since_ns = posted_.since_ns;
  wiring_.engine->post(posted_ = status);
}

}  // namespace levada
