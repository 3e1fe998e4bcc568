#include "levada/feed/feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "levada/base/assert.h"
#include "levada/base/text.h"
#include "levada/engine/collect.h"
#include "levada/feed/envelope.h"
#include "levada/feed/live_stats.h"
#include "levada/feed/reader.h"
#include "levada/feed/start.h"
#include "levada/feed/step_source.h"

namespace levada {
namespace {

/// Interval between two checks for a posted exception.
constexpr Duration poll_interval = std::chrono::milliseconds(25);
/// Interval between two checks for a loss.
constexpr Duration loss_interval = std::chrono::milliseconds(100);

/// Returns the source that a feed of balanced steps reads: each of its samples is one rank's share of a round. Null if
/// steps are not balanced.
std::shared_ptr<StepSource> steps_of(std::shared_ptr<Source> source, const Mesh& mesh, const FeedWiring& wiring,
                                     const FeedOptions& options) {
  if (!options.balance) return nullptr;
  const bool reads_all = wiring.readers.size() == 1;
  return std::make_shared<StepSource>(std::move(source), StepOptions{.ranks = wiring.mesh.data_size(),
                                                                     .cuts = wiring.cuts,
                                                                     .balance = *options.balance,
                                                                     .step_samples = options.batch * mesh.data_size(),
                                                                     .first_sample = options.first_sample,
                                                                     .delayed = options.delayed,
                                                                     .tail = options.tail,
                                                                     .reads_all = reads_all});
}

FeedOptions round_options(const FeedOptions& options) {
  if (!options.balance) return options;
  auto rounds = options;
  rounds.batch = 1;
  rounds.first_sample = 0;
  rounds.tail = Tail::drop;
  return rounds;
}

}  // namespace

/// The receiving side, on the caller's thread.
class Feed::Impl {
 public:
  Impl(const std::shared_ptr<Engine>& engine, const Mesh& mesh, const Layout& layout, std::shared_ptr<Source> source,
       const FeedOptions& options)
      : wiring_(start_feed(engine, mesh, layout, source, options)),
        follower_(wiring_.readers.size() > 1),
        own_(wiring_.audiences[static_cast<std::size_t>(wiring_.own_audience())]),
        inbox_(wiring_.engine, wiring_.data[static_cast<std::size_t>(wiring_.own_audience())], options.access,
               depth_of(mesh, options)),
        timeout_(options.timeout),
        remind_after_(options.remind_after),
        poll_(options.poll),
        batch_(options.batch),
        data_coordinate_(wiring_.mesh.data_coordinate(wiring_.rank())),
        trace_(options.trace) {
    if (!wiring_.is_reader()) return;
    steps_ = steps_of(source, mesh, wiring_, options);
    if (steps_) source = steps_;
    reader_.emplace(wiring_, reporter_, FeedRounds(wiring_, std::move(source), round_options(options)), options);
  }

  std::optional<Batch> next() {
    const Call call(*this);
    own_step_.reset();
    try {
      return next_batch(Clock::now());
    } catch (const Timeout& timeout) {
      give_up(timeout);
      throw;
    } catch (const PeerLost& lost) {
      note_given_up(lost);
      end_watch();  // the exception tells the caller about any loss
      throw;
    } catch (const Error&) {
      end_watch();
      throw;
    }
  }

  std::optional<FlatTree> receive_ahead() {
    const Call call(*this);
    if (end_ || ahead_ || failed_ahead_) return std::nullopt;
    try {
      receive_decisions();
      if (follower_.may_receive()) ahead_ = inbox_.try_receive();
    } catch (const std::exception&) {
      failed_ahead_ = std::current_exception();
    }
    if (!ahead_) return std::nullopt;
    return std::exchange(ahead_->content, FlatTree());
  }

  void request_stop() { reporter_.send(feed_protocol::StopAsked{wiring_.rank()}); }

  void close(std::string_view reason) {
    const Call call(*this);
    own_step_.reset();
    bool is_left = false;
    try {
      if (!end_) is_left = end_by_leaving(reason);
    } catch (...) {
      end_all();
      throw;
    }
    stop_reader();
    if (is_left) throw_left(*follower_.departure());
  }

  std::optional<FeedLoss> await_loss() {
    std::optional<Clock::time_point> known_since;
    while (!is_watch_over()) {
      const std::unique_lock calls(calls_, std::try_to_lock);
      if (!calls || end_) continue;  // the call in progress throws
      look_for_loss();
      if (follower_.departure() && !known_since) known_since = Clock::now();
      const auto known_for = known_since ? Clock::now() - *known_since : Duration{};
      if (follower_.departure() && known_for < loss_timeout) read_reason();
      if (auto loss = find_loss(follower_, wiring_.engine->cause(), known_for, wiring_.rank())) return loss;
    }
    return std::nullopt;
  }

  const std::optional<FeedEnd>& end() const { return end_; }
  bool is_reader() const { return wiring_.is_reader(); }
  const std::shared_ptr<Engine>& group() const { return wiring_.engine; }
  /// Returns the number of uncaught exceptions at the creation of the feed.
  int exceptions_before() const { return exceptions_before_; }
  BalanceSeries balance() const { return steps_ ? steps_->balance() : BalanceSeries(); }
  FeedStats stats() const {
    auto stats = stats_.now();
    if (reader_) reader_->add_to(stats);
    return stats;
  }

 private:
  /// Held during each call of the caller, so that await_loss() does not read the state concurrently.
  class Call {
   public:
    explicit Call(Impl& feed) : feed_(feed), lock_(feed.calls_) {}
    ~Call() {
      if (feed_.end_) feed_.end_watch();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Impl& feed_;
    std::lock_guard<std::mutex> lock_;
  };

  void end_watch() {
    const std::lock_guard lock(watch_mutex_);
    is_watch_over_ = true;
    watch_changed_.notify_all();
  }
  /// Waits up to loss_interval. Returns whether the watch is over.
  bool is_watch_over() {
    std::unique_lock lock(watch_mutex_);
    return watch_changed_.wait_for(lock, loss_interval, [&] { return is_watch_over_; });
  }
  /// Receives departures. If the group has ended, its cause() has the reason.
  void look_for_loss() {
    try {
      receive_decisions();
    } catch (const Error&) {
    }
  }
  /// Looks for an exception that a rank has posted after it left without a reason. A rank that has closed its feed can
  /// post only in the parent of the feed's group.
  void read_reason() {
    const auto left = *follower_.departure();
    if (!left.reason.empty()) return;
    try {
      for (const auto& group : {wiring_.engine, wiring_.parent.lock()}) {
        const auto reason = group ? raised_by(*group, left.rank) : std::nullopt;
        if (reason) follower_.apply(feed_protocol::Left{left.rank, left.at, *reason});
      }
    } catch (const Error&) {
    }
  }

  std::optional<Batch> next_batch(Clock::time_point called) {
    while (true) {
      receive_decisions();
      if (follower_.is_abandoned()) check_abandoned();
      if (!follower_.end()) reporter_.send(std::nullopt);
      if (follower_.finished()) return finish();
      if (read_now()) continue;
      if (follower_.may_receive()) {
        if (failed_ahead_) std::rethrow_exception(std::exchange(failed_ahead_, nullptr));
        auto arrival = ahead_ ? std::exchange(ahead_, std::nullopt) : inbox_.try_receive();
        if (arrival) return deliver(std::move(*arrival), called);
      }
      wait_for_batch();
    }
  }

  /// Ends the pass for all ranks: one of them hangs, possibly the one that would forward this rank's departure.
  void give_up(const Timeout& timeout) {
    if (end_) return;  // a reader's source timed out, and all ranks have been notified
    const auto why = fmt::format("Timeout: {}", timeout.what());
    wiring_.engine->abort(fmt::format("the feed at {} with {}", to_string(follower_.at()), why), ErrorKind::timeout);
    end_ = own_end(FeedEnd::Cause::left, wiring_.rank());
    end_->message = why;
  }

  /// Records that another rank has given up.
  void note_given_up(const PeerLost& lost) {
    const auto cause = wiring_.engine->cause();
    if (end_ || !cause || cause->kind != ErrorKind::timeout) return;
    end_ = own_end(FeedEnd::Cause::abandoned, lost.rank());
    end_->message = cause->detail;
  }

  /// Leaves and sets end_. Returns whether another rank has left with a reason and this one has none.
  bool end_by_leaving(std::string_view reason) {
    receive_decisions();
    const bool has_more = !follower_.finished();
    const bool is_left = reason.empty() && follower_.is_abandoned() && !follower_.departure()->reason.empty();
    if (has_more || !reason.empty()) leave(reason);
    end_ = has_more ? own_end(FeedEnd::Cause::left, wiring_.rank()) : *follower_.end();
    return is_left;
  }

  /// Ends the pass for all ranks because of the exception in flight, with which this rank could not leave.
  void end_all() {
    try {
      throw;
    } catch (const Timeout& timeout) {
      give_up(timeout);
    } catch (const PeerLost& lost) {
      note_given_up(lost);
    } catch (...) {
      wiring_.engine->abort("it could not leave the feed");
    }
    if (!end_) end_ = own_end(FeedEnd::Cause::left, wiring_.rank());
    stop_reader();
  }

  /// Reports that this rank leaves. The lead, which forwards departures, also waits until its own has been sent.
  void leave(std::string_view reason) {
    const auto deadline = Deadline::after(timeout_);
    Reminder reminder(remind_after_);
    const auto explain = [&] { return explain_wait(*wiring_.engine, "leaving the feed", wiring_.lead(), timeout_); };
    auto blocked =
        reporter_.send(feed_protocol::Left{wiring_.rank(), follower_.at(), std::string(cut_text(reason, 2000))});
    while (blocked) {
      const std::span<Channel* const> room(&blocked.room, blocked.room == nullptr ? 0 : 1);
      wait({.publish = room, .allocate = blocked.memory}, deadline, reminder, explain);
      blocked = reporter_.send(std::nullopt);
      if (blocked && deadline.expired()) throw Timeout(explain());  // if memory seemed to be available but was not
      if (blocked && poll_) poll_();
    }
    if (wiring_.rank() != wiring_.lead()) return;
    const std::array<Channel*, 1> decisions = {wiring_.decisions.get()};
    for (receive_decisions(); !is_known_to_have_left(); receive_decisions()) {
      wait({.receive = decisions}, deadline, reminder, explain);
    }
  }
  /// Returns whether the lead has announced that this rank, or another one at the same step or earlier, has left.
  bool is_known_to_have_left() const {
    const auto& left = follower_.departure();
    return left && left->at.round <= follower_.at().round;
  }

  void receive_decisions() {
    while (true) {
      const auto [event, lead_has_left] = try_receive(*wiring_.engine, *wiring_.decisions);
      lead_is_gone_ = lead_has_left;
      if (!event) return;
      if (const auto* granted = std::get_if<feed_protocol::Granted>(&*event)) follower_.apply(*granted);
      if (const auto* ended = std::get_if<feed_protocol::Ended>(&*event)) follower_.apply(*ended);
      if (const auto* left = std::get_if<feed_protocol::Left>(&*event)) follower_.apply(*left);
    }
  }

  /// Throws PeerLost, because a rank has left and the next batch cannot be used. If the rank left without a reason, it
  /// may have left at the end, with the notice of the end still in transit, or it may be failing with an exception that
  /// it has not reported yet.
  void check_abandoned() {
    const auto deadline = Deadline::after(reason_timeout);
    const std::array<Channel*, 1> decisions = {wiring_.decisions.get()};
    while (follower_.is_abandoned() && follower_.departure()->reason.empty() && !deadline.expired()) {
      const std::span<Channel* const> word(decisions.data(), lead_is_gone_ ? 0 : 1);
      wiring_.engine->wait({.receive = word}, Deadline::after(poll_interval));
      receive_decisions();
      read_reason();
    }
    if (!follower_.is_abandoned()) return;
    end_ = own_end(FeedEnd::Cause::abandoned, follower_.departure()->rank);
    end_->message = follower_.departure()->reason;
    stop_reader();
    throw_left(*follower_.departure());
  }

  [[noreturn]] void throw_left(const feed_protocol::Left& left) const {
    const auto gone = fmt::format("rank {} left the feed at {}", left.rank, to_string(left.at));
    const auto asked = fmt::format("rank {} is at {}", wiring_.rank(), to_string(follower_.at()));
    if (!left.reason.empty()) {
      throw PeerLost(left.rank, fmt::format("{} with {}; {} and cannot continue without it", gone, left.reason, asked));
    }
    throw PeerLost(left.rank, fmt::format("{}, but {} and asks for more; end the loops of all ranks at the same step, "
                                          "or call request_stop() on one of them",
                                          gone, asked));
  }

  FeedEnd own_end(FeedEnd::Cause cause, int rank) const {
    return {.cause = cause, .at = follower_.at(), .rank = rank, .message = {}};
  }

  /// Called repeatedly while this rank's caller waits for memory to read into.
  void while_reading() {
    if (poll_) poll_();
    receive_decisions();
    if (follower_.is_abandoned()) check_abandoned();
  }

  std::optional<Batch> finish() {
    end_ = follower_.end();
    stop_reader();
    if (end_->cause != FeedEnd::Cause::failed) return std::nullopt;
    throw_error(end_->error,
                fmt::format("rank {} could not read {}: {}", end_->rank, to_string(end_->at), end_->message));
  }

  Batch deliver(Inbox::Arrival arrival, Clock::time_point called) {
    auto envelope = decode<feed_protocol::Envelope>(arrival.envelope);
    const auto at = follower_.at();
    const bool is_balanced = envelope.num_micro > 0;
    if (envelope.round != at.round || at.micro >= std::max<std::int64_t>(envelope.num_micro, 1)) {
      throw CorruptMessage(0, fmt::format("received round {}, of {} in its step; expected round {}, {}", envelope.round,
                                          envelope.num_micro, at.round, to_string(at)));
    }
    const MicroBatch micro{.step = at.step,
                           .micro = at.micro,
                           .num_micro = is_balanced ? envelope.num_micro : 1,
                           .samples = is_balanced ? envelope.samples : envelope.samples_at(data_coordinate_, batch_)};
    LEVADA_ASSERT(follower_.may_receive(), "a batch is handed out once its round is granted");
    follower_.advance(micro.ends_step());
    // A batch that was received ahead arrived before the call.
    const auto cp_rank = static_cast<int>(data_coordinate_ % envelope.cp_size);
    stats_.add_batch(cp_rank == 0 ? micro.samples : 0, arrival.tensor_bytes, arrival.copied, arrival.there - called);
    own_step_.emplace(trace_, TraceThread::step, TraceKind::step, envelope.round, own_.from);
    if (!is_reader()) post("computing", micro.step, -1);
    return {.step = micro.step,
            .micro = micro.micro,
            .num_micro = micro.num_micro,
            .samples = micro.samples,
            .cp_size = envelope.cp_size,
            .cp_rank = cp_rank,
            .totals = envelope.totals,
            .content = std::move(arrival.content),
            .cursor = std::move(envelope.cursor)};
  }

  /// Reads the round on this thread. Returns whether it did. The time counts as waited.
  bool read_now() {
    if (!reader_ || reader_->is_ahead()) return false;
    const LiveStats::Wait wait(stats_);
    return reader_->read_now(follower_.at().round, [this] { while_reading(); });
  }

  void wait_for_batch() {
    const bool may_receive = follower_.may_receive();
    // A channel that has ended would wake the wait immediately.
    std::vector<Channel*> channels;
    if (!lead_is_gone_) channels.push_back(wiring_.decisions.get());
    if (may_receive && !inbox_.ended()) channels.push_back(&inbox_.channel());
    if (channels.empty()) {
      check_group(*wiring_.engine);
      throw PeerLost(waiting_for(), fmt::format("rank {} left the feed before {} without ending it", waiting_for(),
                                                to_string(follower_.at())));
    }
    if (!is_reader()) post("receiving", follower_.at().step, waiting_for());
    const LiveStats::Wait count(stats_);
    const TraceScope scope(trace_, TraceThread::step, may_receive ? TraceKind::handover : TraceKind::grant,
                           follower_.at().round, waiting_for());
    Reminder reminder(remind_after_);
    const auto explain = [&] { return explain_wait(*wiring_.engine, "the feed", waiting_for(), count.elapsed()); };
    WaitFor conditions{.receive = channels};
    conditions.poll = &poll_;
    for (auto seen = progress_of_readers(wiring_);;) {
      if (reminder.wait(*wiring_.engine, conditions, Deadline::after(timeout_), explain) != Woken::timeout) return;
      auto now = progress_of_readers(wiring_);
      if (now == seen) throw Timeout(explain());
      seen = std::move(now);
    }
  }

  /// Waits until one of the conditions holds. Throws Timeout with the text that `explain` then returns.
  void wait(WaitFor conditions, Deadline deadline, Reminder& reminder, const std::function<std::string()>& explain) {
    conditions.poll = &poll_;
    if (reminder.wait(*wiring_.engine, conditions, deadline, explain) == Woken::timeout) throw Timeout(explain());
  }

  void stop_reader() {
    if (reader_) reader_->stop();
  }

  void post(std::string_view operation, std::int64_t step, int waiting_for) {
    wiring_.engine->post(Status::make(operation, step, waiting_for));
  }
  /// Returns the reader, or the lead if the batch is not granted yet.
  int waiting_for() const { return follower_.may_receive() ? own_.from : wiring_.lead(); }

  int exceptions_before_ = std::uncaught_exceptions();
  FeedWiring wiring_;
  Reporter reporter_{wiring_};
  feed_protocol::Follower follower_;
  bool lead_is_gone_ = false;  ///< no more decisions will arrive
  const Audience& own_;
  Inbox inbox_;
  std::optional<Inbox::Arrival> ahead_;  ///< received ahead, its content already returned
  std::exception_ptr failed_ahead_;      ///< exception from receiving ahead
  Duration timeout_;
  Duration remind_after_;
  std::function<void()> poll_;
  std::int64_t batch_;
  std::int64_t data_coordinate_;
  TraceLog* trace_;
  std::optional<TraceScope> own_step_;  ///< the caller's time between two calls of next()
  LiveStats stats_;
  std::optional<FeedEnd> end_;
  std::shared_ptr<StepSource> steps_;  ///< null without balance, and on ranks that do not read
  std::optional<FeedReader> reader_;
  std::mutex calls_;  ///< held by the thread that uses what next() changes
  std::mutex watch_mutex_;
  std::condition_variable watch_changed_;
  bool is_watch_over_ = false;  ///< guarded by watch_mutex_
};

Tensor Batch::tensor(std::string_view path) const {
  const auto specs = content.schema.leaves();
  const auto found = std::ranges::find(specs, path, &LeafSpec::path);
  const auto* leaf = found == specs.end() ? nullptr : &content.leaves[static_cast<std::size_t>(found - specs.begin())];
  const auto* tensor = leaf == nullptr ? nullptr : std::get_if<Tensor>(leaf);
  return tensor != nullptr ? *tensor : tree().tensor(path);
}

Feed::Feed(std::shared_ptr<Engine> engine, const Mesh& mesh, const Layout& layout, std::shared_ptr<Source> source,
           const FeedOptions& options)
    : impl_(std::make_unique<Impl>(std::move(engine), mesh, layout, std::move(source), options)) {}

Feed::~Feed() {
  const bool is_unwinding = std::uncaught_exceptions() > impl_->exceptions_before();
  try {
    impl_->close(is_unwinding ? "an exception" : "");
  } catch (const std::exception&) {
    // The group has ended for another reason, or poll threw: no rank is left to notify.
  }
}

std::optional<Batch> Feed::next() {
  return impl_->next();
}
std::optional<FlatTree> Feed::receive_ahead() {
  return impl_->receive_ahead();
}
void Feed::request_stop() {
  impl_->request_stop();
}
void Feed::close(std::string_view reason) {
  impl_->close(reason);
}
std::optional<FeedLoss> Feed::await_loss() {
  return impl_->await_loss();
}
const std::optional<FeedEnd>& Feed::end() const {
  return impl_->end();
}
FeedStats Feed::stats() const {
  return impl_->stats();
}
BalanceSeries Feed::balance() const {
  return impl_->balance();
}
bool Feed::is_reader() const {
  return impl_->is_reader();
}
const std::shared_ptr<Engine>& Feed::group() const {
  return impl_->group();
}

}  // namespace levada
