#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/engine/collect.h"

namespace levada {
namespace {

/// Yields the processor a few times before the caller sleeps, because the other ranks are usually in the same call, and
/// a wake-up costs more.
class SpinWait {
 public:
  /// Returns false when it is time to sleep.
  bool yield() {
    if (yields_ == max_yields) return false;
    ++yields_;
    std::this_thread::yield();
    return true;
  }
  void reset() { yields_ = 0; }

 private:
  static constexpr int max_yields = 16;
  int yields_ = 0;
};

/// Returns the mark that precedes a rank's payload: a hash of the collective call's name.
std::uint64_t mark_of(std::string_view what) {
  return hash64(as_bytes(what));
}

void send(Engine& engine, Channel& channel, ByteView payload, Deadline deadline, std::string_view what,
          const std::function<void()>* poll) {
  const std::uint64_t mark = mark_of(what);
  Block block = allocate(engine, sizeof(mark) + payload.size(), deadline, what, {}, poll);
  const auto to = block.memory();
  std::memcpy(to.data(), &mark, sizeof(mark));                   // not payload: a mark
  std::ranges::copy(payload, to.subspan(sizeof(mark)).begin());  // not payload: bytes that ranks exchange
  publish(engine, channel, std::move(block), sizeof(mark) + payload.size(), deadline, what, poll);
}

/// Strips the mark from a message of `rank`. Ends the group if `rank` is in another call, because no rank would answer
/// this one.
Lease strip_mark(Engine& engine, int rank, Lease lease, std::string_view what) {
  std::uint64_t mark = 0;
  if (lease.bytes.size() >= sizeof(mark)) std::memcpy(&mark, lease.bytes.data(), sizeof(mark));  // not payload: a mark
  if (mark != mark_of(what) || lease.bytes.size() < sizeof(mark)) {
    engine.abort(
        fmt::format("it is in {}, but rank {} is in another collective call; all ranks must make the same calls in "
                    "the same order",
                    what, rank),
        ErrorKind::invalid_argument);
    check_group(engine);
  }
  lease.bytes = lease.bytes.subspan(sizeof(mark));
  return lease;
}

Lease receive_from_root(Engine& engine, Channel& channel, Deadline deadline, std::string_view what,
                        const std::function<void()>* poll) {
  OperationStatus posted(engine, what);
  posted.post(0);
  auto lease = receive(engine, channel, deadline, what, poll);
  if (!lease) throw_left(engine, 0, what);
  return strip_mark(engine, 0, *std::move(lease), what);
}

/// Returns when rank 0 last posted that it was in the same call, or 0 if it is not known to be in it.
std::int64_t last_step_of_root(Engine& engine, std::string_view what) {
  const Status root = engine.status(0);
  return root.operation == Status::make(what, -1).operation ? root.since_ns : 0;
}

/// Receives rank 0's answer. Renews the deadline as long as rank 0 makes progress in the call.
Lease receive_answer(Engine& engine, Channel& channel, Duration timeout, std::string_view what,
                     const std::function<void()>* poll) {
  OperationStatus posted(engine, what);
  SpinWait spin;
  const auto begin = Clock::now();
  const auto explain = [&] { return explain_wait(engine, what, 0, Clock::now() - begin); };
  Reminder reminder;
  Channel* const channels[] = {&channel};
  auto deadline = Deadline::after(timeout);
  std::int64_t last_step = 0;
  for (bool has_posted = false;;) {
    auto received = engine.try_receive(channel);
    if (received.ended) throw_left(engine, 0, what);
    if (received.message) return strip_mark(engine, 0, *std::move(received.message), what);
    if (spin.yield()) continue;
    if (!std::exchange(has_posted, true)) posted.post(0);
    // Check rank 0 several times, because over a network each check returns the reply to the previous check's request.
    const auto look = std::ranges::min(deadline, Deadline::after(timeout / 4), {}, &Deadline::at);
    if (reminder.wait(engine, {.receive = channels, .poll = poll}, look, explain) != Woken::timeout) continue;
    if (const auto step = last_step_of_root(engine, what); step > last_step) {
      last_step = step;
      deadline = Deadline::after(timeout);
    } else if (deadline.expired()) {
      throw Timeout(explain());
    }
  }
}

std::vector<std::shared_ptr<Channel>> open_to_root(Engine& engine) {
  std::vector<std::shared_ptr<Channel>> channels;
  for (int rank = 1; rank < engine.info().size; ++rank) channels.push_back(engine.open(rank, {0}, 1));
  return channels;
}

/// Rank 0's half of a gather: receives each other rank's bytes as they arrive.
class Gather {
 public:
  /// `channels` are from ranks 1, 2 and so on.
  Gather(Engine& engine, std::span<const std::shared_ptr<Channel>> channels, std::string_view what)
      : engine_(engine), what_(what), channels_(channels), parts_(channels.size() + 1) {
    for (int rank = 1; rank < engine.info().size; ++rank) missing_.push_back(rank);
  }

  /// Returns the leases by rank; rank 0's entry is empty. Each arrival extends the deadline to `renewed` after it, if
  /// that is later.
  std::vector<Lease> run(OperationStatus& posted, Deadline deadline, Duration renewed,
                         const std::function<void()>* poll) {
    auto begin = Clock::now();
    const auto explain = [&] { return explain_missing(Clock::now() - begin); };
    Reminder reminder;
    SpinWait spin;
    bool has_posted = false;
    while (!missing_.empty()) {
      if (receive_ready()) {
        spin.reset();
        has_posted = false;
        if (const auto later = Deadline::after(renewed); later.at() > deadline.at()) {
          deadline = later;
          begin = Clock::now();
        }
      } else if (!spin.yield()) {
        if (!std::exchange(has_posted, true)) posted.post(missing_.front(), missing_text());
        wait_for_first(reminder, deadline, explain, poll);
      }
    }
    return std::move(parts_);
  }

 private:
  Channel& channel(int rank) { return *channels_[static_cast<std::size_t>(rank - 1)]; }

  /// Waits only for the first of the missing ranks, so that not every arrival wakes this thread. Also returns after an
  /// interval, to check the others.
  void wait_for_first(Reminder& reminder, Deadline deadline, const std::function<std::string()>& explain,
                      const std::function<void()>* poll) {
    constexpr Duration interval = std::chrono::milliseconds(25);
    Channel* const first[] = {&channel(missing_.front())};
    const auto look = std::ranges::min(deadline, Deadline::after(interval), {}, &Deadline::at);
    const Woken woken = reminder.wait(engine_, {.receive = first, .poll = poll}, look, explain);
    if (woken == Woken::timeout && deadline.expired()) throw Timeout(explain());
  }

  /// Returns whether anything has arrived.
  bool receive_ready() {
    return 0 < std::erase_if(missing_, [&](int rank) {
             auto received = engine_.try_receive(channel(rank));
             if (received.ended) throw_left(engine_, rank, what_);
             if (!received.message) return false;
             parts_[static_cast<std::size_t>(rank)] = strip_mark(engine_, rank, *std::move(received.message), what_);
             return true;
           });
  }

  /// Names only the first missing ranks if there are many, because a status has room for few.
  std::string missing_text() const {
    constexpr std::size_t max_named = 32;
    const auto named = std::span(missing_).first(std::min(missing_.size(), max_named));
    return fmt::format("missing {} {}{}", missing_.size() == 1 ? "is rank" : "are ranks", fmt::join(named, ", "),
                       named.size() < missing_.size() ? ", ..." : "");
  }

  std::string explain_missing(Duration waited) {
    const std::string text = explain_wait(engine_, what_, missing_.front(), waited);
    return missing_.size() == 1 ? text : fmt::format("{}; {}", text, missing_text());
  }

  Engine& engine_;
  std::string_view what_;
  std::span<const std::shared_ptr<Channel>> channels_;
  std::vector<int> missing_;
  std::vector<Lease> parts_;
};

/// Posts why this rank ends a collective call, for ranks that see it leave while they wait for its answer.
void post_loss(Engine& engine, const PeerLost& lost) {
  try {
    const std::int64_t step = engine.status(engine.info().rank).step;
    engine.post(Status::make(raised_operation, step, lost.rank(), fmt::format("PeerLost: {}", lost.what())));
  } catch (const Error&) {
    // The group has ended, and its calls report the cause on every rank.
  }
}

Bytes join(ByteView mine, std::span<const Lease> others) {
  ByteWriter all;
  all.put_sized(mine);
  for (const Lease& part : others.subspan(1)) all.put_sized(part.bytes);
  return std::move(all).take();
}

std::vector<Bytes> split(ByteView all, int count) {
  ByteReader reader(all);
  std::vector<Bytes> parts;
  for (int i = 0; i < count; ++i) {
    const ByteView part = reader.get_sized();
    parts.emplace_back(part.begin(), part.end());
  }
  reader.expect_end();
  return parts;
}

}  // namespace

std::vector<Bytes> agree(Engine& engine, ByteView mine, Deadline deadline, std::string_view what,
                         const std::function<void()>* poll) {
  const auto [rank, size] = std::pair(engine.info().rank, engine.info().size);
  if (size == 1) return {Bytes(mine.begin(), mine.end())};
  std::vector<int> others(static_cast<std::size_t>(size - 1));
  std::iota(others.begin(), others.end(), 1);
  if (rank == 0) {
    const auto channels = open_to_root(engine);
    const auto answer = engine.open(0, others, 1);
    try {
      OperationStatus posted(engine, what);
      const Bytes all = join(mine, Gather(engine, channels, what).run(posted, deadline, Duration::zero(), poll));
      send(engine, *answer, all, deadline, what, poll);
      return split(all, size);
    } catch (const PeerLost& lost) {
      post_loss(engine, lost);  // before the channels end
      throw;
    }
  }
  const auto to_root = engine.open(rank, {0}, 1);
  const auto answer = engine.open(0, others, 1);
  send(engine, *to_root, mine, deadline, what, poll);
  return split(receive_from_root(engine, *answer, deadline, what, poll).bytes, size);
}

GatherScatter::GatherScatter(std::shared_ptr<Engine> engine, std::string what)
    : engine_(std::move(engine)), what_(std::move(what)) {
  const auto [rank, size] = std::pair(engine_->info().rank, engine_->info().size);
  if (rank != 0) {
    to_root_ = {engine_->open(rank, {0}, 1)};
    from_root_ = {engine_->open(0, {rank}, 1)};
    return;
  }
  to_root_ = open_to_root(*engine_);
  for (int each = 1; each < size; ++each) from_root_.push_back(engine_->open(0, {each}, 1));
}

Lease GatherScatter::call(ByteView mine, const Answer& answer, Duration timeout, const std::function<void()>* poll) {
  if (engine_->info().rank != 0) {
    // Rank 0 has ended the calls and may not have received this rank's message of the last one.
    if (engine_->try_receive(*from_root_[0]).ended) throw_left(*engine_, 0, what_);
    send(*engine_, *to_root_[0], mine, Deadline::after(timeout), what_, poll);
    return receive_answer(*engine_, *from_root_[0], timeout, what_, poll);
  }
  std::vector<Lease> others;
  OperationStatus posted(*engine_, what_);
  try {
    others = Gather(*engine_, to_root_, what_).run(posted, Deadline::after(timeout), timeout, poll);
  } catch (const PeerLost& lost) {
    posted.end();
    post_loss(*engine_, lost);  // before the channels end, which tells the others that no answer follows
    for (const auto& channel : from_root_) engine_->close(*channel, End::sending);
    throw;
  }
  std::vector<ByteView> contents{mine};
  for (const Lease& other : std::span(others).subspan(1)) contents.push_back(other.bytes);
  posted.post(-1, "computing the answers");
  const auto parts = answer(contents);
  for (std::size_t rank = 1; rank < contents.size(); ++rank) {
    send(*engine_, *from_root_[rank - 1], *parts[rank], Deadline::after(timeout), what_, poll);
  }
  return {*parts[0], parts[0]};
}

}  // namespace levada
