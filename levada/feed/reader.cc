#include "levada/feed/reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/engine/collect.h"
#include "levada/feed/feed.h"

namespace levada {

FeedReader::FeedReader(const FeedWiring& wiring, Reporter& reporter, FeedRounds rounds, const FeedOptions& options)
    : wiring_(wiring),
      reporter_(reporter),
      rounds_(std::move(rounds)),
      timeout_(options.timeout),
      trace_(options.trace),
      ahead_(options.ahead) {
  if (wiring_.rank() == wiring_.lead()) lead_.emplace(wiring_);
  thread_ = std::thread([this] { run(); });
}

FeedReader::~FeedReader() {
  stop();
}

void FeedReader::read_now(std::int64_t round) {
  if (ahead_) return;
  const std::lock_guard lock(driving_);
  // A round that waits for room is the thread's to send, as are decisions and reports: an end of a channel is one
  // thread's at a time.
  if (round != round_ || reported_end_ || !prepared_.empty() || (lead_ && lead_->has_end())) return;
  try {
    read_round();
    if (!prepared_.empty()) send_round();
  } catch (const PeerLost&) {
    throw;
  } catch (const std::exception& error) {
    wiring_.engine->abort(fmt::format("rank {} cannot go on reading: {}", wiring_.rank(), error.what()));
    throw;
  }
  post("in its own step", -1, {});
  const bool has_news = lead_ ? lead_->has_news() : bool(reporter_.send(std::nullopt));
  if (!has_news && !reported_end_ && prepared_.empty()) return;
  has_news_.store(true);
  wiring_.engine->wake();
}

void FeedReader::stop() {
  stop_.store(true);
  has_news_.store(true);
  wiring_.engine->wake();
  if (thread_.joinable()) thread_.join();
}

ReadStats FeedReader::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

void FeedReader::run() noexcept {
  try {
    while (!stop_.load()) {
      has_news_.store(false);
      Awaited next;
      {
        const std::lock_guard lock(driving_);
        if (finished()) return;
        if (advance()) continue;
        if (finished()) return;
        next = awaited();
      }
      if (!stop_.load()) wait(next);
    }
  } catch (const Interrupted&) {
  } catch (const PeerLost&) {
    // This rank's own calls see it too, and say so.
  } catch (const std::exception& error) {
    wiring_.engine->abort(fmt::format("rank {} cannot go on reading: {}", wiring_.rank(), error.what()));
  }
}

bool FeedReader::finished() const {
  return lead_ ? lead_->done() : reported_end_ && !reporter_.send(std::nullopt);
}

bool FeedReader::advance() {
  const bool led = lead_ && lead_->advance();
  reporter_.send(std::nullopt);
  if (lead_ && lead_->has_end()) {
    prepared_.clear();
    return led;
  }
  if (!prepared_.empty()) return send_round() || led;
  if (reported_end_ || !ahead_) return led;
  read_round();
  return true;
}

void FeedReader::read_round() {
  post("reading", -1, rounds_.source().activity());
  sample_memory();
  prepared_ = rounds_.read(round_, [this](std::size_t bytes) { return allocate(bytes); });
  sample_memory();
  {
    const std::lock_guard lock(stats_mutex_);
    stats_ = rounds_.source().stats();
  }
  if (!rounds_.ended()) return;
  report(feed_protocol::Stopped{wiring_.reader_index(), *rounds_.ended()});
  reported_end_ = true;
}

bool FeedReader::send_round() {
  // All audiences or none, so that a round that has reached one has reached all: they stop at the same step.
  const bool has_room = full_channel() == nullptr;
  {
    const bool is_complete = prepared_.front().batch == nullptr;
    const TraceScope scope(is_complete ? nullptr : trace_, TraceThread::reader, TraceKind::pack, round_);
    for (auto& outgoing : prepared_) {
      outgoing.complete();
      // Waits only where another channel's messages have meanwhile taken the room that there was.
      if (has_room)
        publish(*wiring_.engine, *outgoing.channel, std::move(outgoing.packed.block), outgoing.packed.bytes,
                Deadline::after(timeout_), "the feed");
    }
  }
  if (!has_room) return false;
  prepared_.clear();
  report(feed_protocol::Ready{wiring_.reader_index(), ++round_});
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
  // Who was last before is likely to be so again: then one wake-up does for all.
  if (slowest_ != nullptr && is_full(slowest_)) return slowest_;
  const auto found = std::ranges::find_if(prepared_, is_full, &FeedRounds::Outgoing::channel);
  if (found == prepared_.end()) return nullptr;
  return slowest_ = found->channel;
}

FeedReader::Awaited FeedReader::awaited() {
  Awaited awaited;
  if (lead_) {
    for (const auto& channel : wiring_.reports) awaited.hear.push_back(channel.get());
    if (lead_->has_news()) awaited.add(lead_->lacking());
  } else {
    awaited.add(reporter_.send(std::nullopt));
  }
  if (prepared_.empty()) {
    if (!ahead_ && !reported_end_) post("in its own step", -1, {});
    return awaited;
  }
  awaited.held = round_;
  if (Channel* const full = full_channel()) {
    awaited.room.push_back(full);
    awaited.slow = post_full(*full);
  } else {
    for (const auto& outgoing : prepared_) awaited.room.push_back(outgoing.channel);  // room was made since
  }
  return awaited;
}

void FeedReader::wait(const Awaited& awaited) {
  const TraceScope scope(awaited.held ? trace_ : nullptr, TraceThread::reader, TraceKind::room,
                         awaited.held.value_or(0), awaited.slow);
  const WaitFor conditions{
      .take = awaited.hear, .publish = awaited.room, .allocate = awaited.memory, .stop = &has_news_};
  wiring_.engine->wait(conditions, Deadline::never());
}

int FeedReader::post_full(Channel& channel) const {
  for (const auto& holder : wiring_.engine->holders(channel)) {
    if (holder.not_taken < channel.window()) continue;
    post("waiting for room", holder.rank,
         fmt::format("rank {} has not taken step {}", holder.rank, round_ - channel.window()));
    return holder.rank;
  }
  return -1;
}

void FeedReader::sample_memory() const {
  if (trace_ == nullptr) return;
  trace_->add({.step = round_, .time_ns = trace_time(Clock::now()), .bytes = wiring_.engine->memory_in_use()});
}

Block FeedReader::allocate(std::size_t bytes) {
  Engine& engine = *wiring_.engine;
  const auto deadline = Deadline::after(timeout_);
  while (true) {
    if (auto block = engine.try_allocate(bytes)) return std::move(*block);
    std::vector<Channel*> sent;
    for (const auto& channel : wiring_.data) {
      if (channel && channel->from() == wiring_.rank()) sent.push_back(channel.get());
    }
    const std::string why = explain_full_memory(engine, bytes, "the feed", timeout_, sent);
    post("waiting for memory", -1, why);
    const TraceScope scope(trace_, TraceThread::reader, TraceKind::memory, round_);
    const Woken woken = engine.wait({.allocate = bytes, .stop = &stop_}, deadline);
    if (woken == Woken::stopped) throw Interrupted{};
    if (woken == Woken::timeout) throw Timeout(why);
  }
}

void FeedReader::post(std::string_view operation, int waiting_for, std::string_view detail) const {
  wiring_.engine->post(Status::make(operation, round_, waiting_for, detail));
}

}  // namespace levada
