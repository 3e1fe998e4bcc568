#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/engine/collect.h"

namespace levada {
namespace {

/// Posts what this rank waits for, and what it had posted before when the wait is over.
class Posted {
 public:
  Posted(Engine& engine, std::string_view what)
      : engine_(engine), what_(what), before_(engine.status(engine.info().rank)) {}
  ~Posted() {
    if (!posted_) return;
    try {
      engine_.post(before_);
    } catch (const Error&) {
      // The group has ended; nobody reads the board any more.
    }
  }
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;

  void waiting_for(int rank, std::string_view detail = {}) {
    engine_.post(Status::make(what_, before_.step, rank, detail));
    posted_ = true;
  }

 private:
  Engine& engine_;
  std::string_view what_;
  Status before_;
  bool posted_ = false;
};

/// Before what a rank says: which collective call it is in, by its name.
std::uint64_t mark_of(std::string_view what) {
  return hash64(as_bytes(what));
}

void send(Engine& engine, Channel& channel, ByteView payload, Deadline deadline, std::string_view what,
          const std::function<void()>* poll) {
  const std::uint64_t mark = mark_of(what);
  Block block = allocate(engine, sizeof(mark) + payload.size(), deadline, what, {}, poll);
  const auto to = block.memory();
  std::memcpy(to.data(), &mark, sizeof(mark));                   // not payload: a mark
  std::ranges::copy(payload, to.subspan(sizeof(mark)).begin());  // not payload: what ranks say to each other
  publish(engine, channel, std::move(block), sizeof(mark) + payload.size(), deadline, what, poll);
}

/// What `rank` has said. Ends the group where that is in another call: nobody there waits for an answer to this one.
Lease said_by(Engine& engine, int rank, Lease lease, std::string_view what) {
  std::uint64_t mark = 0;
  if (lease.bytes.size() >= sizeof(mark)) std::memcpy(&mark, lease.bytes.data(), sizeof(mark));  // not payload: a mark
  if (mark != mark_of(what) || lease.bytes.size() < sizeof(mark)) {
    engine.abort(
        fmt::format("it is in {}, but rank {} in another collective call; all ranks must make the same calls in "
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
  Posted posted(engine, what);
  posted.waiting_for(0);
  auto lease = receive(engine, channel, deadline, what, poll);
  if (!lease) throw_left(engine, 0, what);
  return said_by(engine, 0, *std::move(lease), what);
}

std::vector<std::shared_ptr<Channel>> open_to_root(Engine& engine) {
  std::vector<std::shared_ptr<Channel>> channels;
  for (int rank = 1; rank < engine.info().size; ++rank) channels.push_back(engine.open(rank, {0}, 1));
  return channels;
}

/// Rank 0's half of a gather: what each other rank says, as it arrives.
class Gather {
 public:
  /// `channels`: from ranks 1, 2 and so on.
  Gather(Engine& engine, std::span<const std::shared_ptr<Channel>> channels, std::string_view what)
      : engine_(engine), what_(what), channels_(channels), parts_(channels.size() + 1) {
    for (int rank = 1; rank < engine.info().size; ++rank) missing_.push_back(rank);
  }

  /// By rank; nothing of rank 0.
  std::vector<Lease> run(Deadline deadline, const std::function<void()>* poll) {
    const auto begin = Clock::now();
    const auto explain = [&] { return explain_missing(Clock::now() - begin); };
    Posted posted(engine_, what_);
    Reminder reminder;
    for (receive_ready(); !missing_.empty(); receive_ready()) {
      std::vector<Channel*> waiting;
      for (const int rank : missing_) waiting.push_back(&channel(rank));
      posted.waiting_for(missing_.front(), say_missing());
      const Woken woken = reminder.wait(engine_, {.receive = waiting, .poll = poll}, deadline, explain);
      if (woken == Woken::timeout) throw Timeout(explain());
    }
    return std::move(parts_);
  }

 private:
  Channel& channel(int rank) { return *channels_[static_cast<std::size_t>(rank - 1)]; }

  void receive_ready() {
    std::erase_if(missing_, [&](int rank) {
      auto received = engine_.try_receive(channel(rank));
      if (received.ended) throw_left(engine_, rank, what_);
      if (!received.message) return false;
      parts_[static_cast<std::size_t>(rank)] = said_by(engine_, rank, *std::move(received.message), what_);
      return true;
    });
  }

  /// Of many the first ones: the board has room for few.
  std::string say_missing() const {
    constexpr std::size_t max_named = 32;
    const auto named = std::span(missing_).first(std::min(missing_.size(), max_named));
    return fmt::format("missing {} {}{}", missing_.size() == 1 ? "is rank" : "are ranks", fmt::join(named, ", "),
                       named.size() < missing_.size() ? ", ..." : "");
  }

  std::string explain_missing(Duration waited) {
    const std::string text = explain_wait(engine_, what_, missing_.front(), waited);
    return missing_.size() == 1 ? text : fmt::format("{}; {}", text, say_missing());
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
    // The group has ended, and its calls say why on every rank.
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
      const Bytes all = join(mine, Gather(engine, channels, what).run(deadline, poll));
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

Lease GatherScatter::call(ByteView mine, const Answer& answer, Deadline deadline, const std::function<void()>* poll) {
  if (engine_->info().rank != 0) {
    send(*engine_, *to_root_[0], mine, deadline, what_, poll);
    return receive_from_root(*engine_, *from_root_[0], deadline, what_, poll);
  }
  const auto others = Gather(*engine_, to_root_, what_).run(deadline, poll);
  std::vector<ByteView> said{mine};
  for (const Lease& other : std::span(others).subspan(1)) said.push_back(other.bytes);
  const auto parts = answer(said);
  for (std::size_t rank = 1; rank < said.size(); ++rank) {
    send(*engine_, *from_root_[rank - 1], *parts[rank], deadline, what_, poll);
  }
  return {*parts[0], parts[0]};
}

}  // namespace levada
