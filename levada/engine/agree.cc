#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "levada/base/error.h"
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

/// Sends `payload` behind one byte, since a message may not be empty.
void send(Engine& engine, Channel& channel, ByteView payload, Deadline deadline, std::string_view what,
          const std::function<void()>* poll) {
  Block block = allocate(engine, payload.size() + 1, deadline, what, {}, poll);
  block.memory()[0] = std::byte{0};
  std::ranges::copy(payload, block.memory().begin() + 1);  // not payload: what ranks say to each other
  publish(engine, channel, std::move(block), payload.size() + 1, deadline, what, poll);
}

ByteView payload_of(const Lease& lease) {
  return lease.bytes.subspan(1);
}

/// Rank 0's half of the gather: each other rank's part as it arrives.
class Gather {
 public:
  Gather(Engine& engine, std::string_view what) : engine_(engine), what_(what), parts_(size(engine)) {
    for (int rank = 1; rank < engine.info().size; ++rank) {
      channels_.push_back(engine.open(rank, {0}, 1));
      missing_.push_back(rank);
    }
  }

  std::vector<Bytes> run(ByteView mine, Deadline deadline, const std::function<void()>* poll) {
    const auto begin = Clock::now();
    const auto explain = [&] { return explain_missing(Clock::now() - begin); };
    Posted posted(engine_, what_);
    Reminder reminder;
    parts_[0].assign(mine.begin(), mine.end());
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
  static std::size_t size(Engine& engine) { return static_cast<std::size_t>(engine.info().size); }
  Channel& channel(int rank) { return *channels_[static_cast<std::size_t>(rank - 1)]; }

  void receive_ready() {
    std::erase_if(missing_, [&](int rank) {
      const auto received = engine_.try_receive(channel(rank));
      if (received.ended) throw_left(engine_, rank, what_);
      if (!received.message) return false;
      const ByteView part = payload_of(*received.message);
      parts_[static_cast<std::size_t>(rank)].assign(part.begin(), part.end());
      return true;
    });
  }

  std::string say_missing() const {
    return fmt::format("missing {} {}", missing_.size() == 1 ? "is rank" : "are ranks", fmt::join(missing_, ", "));
  }

  std::string explain_missing(Duration waited) {
    const std::string text = explain_wait(engine_, what_, missing_.front(), waited);
    return missing_.size() == 1 ? text : fmt::format("{}; {}", text, say_missing());
  }

  Engine& engine_;
  std::string_view what_;
  std::vector<std::shared_ptr<Channel>> channels_;
  std::vector<int> missing_;
  std::vector<Bytes> parts_;
};

Bytes join(const std::vector<Bytes>& parts) {
  ByteWriter all;
  for (const Bytes& part : parts) all.put_sized(part);
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
    Gather gather(engine, what);
    const auto answer = engine.open(0, others, 1);
    auto parts = gather.run(mine, deadline, poll);
    send(engine, *answer, join(parts), deadline, what, poll);
    return parts;
  }
  const auto gather = engine.open(rank, {0}, 1);
  const auto answer = engine.open(0, others, 1);
  send(engine, *gather, mine, deadline, what, poll);
  Posted posted(engine, what);
  posted.waiting_for(0);
  const auto lease = receive(engine, *answer, deadline, what, poll);
  if (!lease) throw_left(engine, 0, what);
  return split(payload_of(*lease), size);
}

}  // namespace levada
