#include "levada/pipeline/end_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "levada/base/error.h"

namespace levada::pipeline {
namespace {

/// What a rank says takes in what it said before, so nothing is lost where there is no room for it.
constexpr int window = 4;

/// Puts back what stood on the status board when the wait is over.
class Waiting {
 public:
  Waiting(Engine& engine, const std::string& stage, std::int64_t item, int rank)
      : engine_(engine), before_(engine.status(engine.info().rank)) {
    engine.post(Status::make(stage, item, rank));
  }
  ~Waiting() {
    try {
      engine_.post(before_);
    } catch (const Error&) {
      // The group has ended; nobody reads the board any more.
    }
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Engine& engine_;
  Status before_;
};

}  // namespace

// ---- CommonEnd

void CommonEnd::apply(int rank, Lookahead said) {
  auto& before = said_[static_cast<std::size_t>(rank)];
  if (said.until < before.until || before.kind != Lookahead::Kind::there) {
    throw CorruptMessage(0, fmt::format("rank {} takes back what it said of item {} of its epoch", rank, before.until));
  }
  const bool was_last = before.until == there_until_ && said.until > there_until_ && --at_there_until_ == 0;
  before = std::move(said);
  if (!was_last) return;
  // Only when all have moved on: looking at all ranks for each message would take the square of their number.
  there_until_ = std::ranges::min(said_, {}, &Lookahead::until).until;
  at_there_until_ = std::ranges::count(said_, there_until_, &Lookahead::until);
}

bool CommonEnd::knows(int rank, std::int64_t item) const {
  const auto& said = said_[static_cast<std::size_t>(rank)];
  return said.until > item || said.kind != Lookahead::Kind::there;
}

std::optional<CommonEnd::Outcome> CommonEnd::outcome(std::int64_t item) const {
  Outcome outcome;
  if (item < there_until_) return outcome;
  for (int rank = 0; rank < static_cast<int>(said_.size()); ++rank) {
    if (!knows(rank, item)) return std::nullopt;
    const auto& said = said_[static_cast<std::size_t>(rank)];
    if (said.until > item || outcome.kind == Lookahead::Kind::failed) continue;
    outcome.kind = said.kind;
    if (said.kind != Lookahead::Kind::failed) continue;
    outcome.failed_rank = rank;
    outcome.failure = &*said.failure;
  }
  return outcome;
}

// ---- EndAgreement

namespace {

/// A group of its own: what this rank does meanwhile on others, on whatever thread, opens no channels in it.
std::shared_ptr<Engine> group_of_all(Engine& engine) {
  std::vector<int> ranks(static_cast<std::size_t>(engine.info().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return engine.subgroup(ranks, "end agreement");
}

}  // namespace

EndAgreement::EndAgreement(std::shared_ptr<Engine> all_ranks, EndAgreementOptions options)
    : job_(std::move(all_ranks)),
      engine_(group_of_all(*job_)),
      options_(std::move(options)),
      common_(engine_->info().size) {
  const int size = engine_->info().size;
  for (int from = 0; from < size && size > 1; ++from) {
    std::vector<int> to;
    for (int other = 0; other < size; ++other) {
      if (other != from) to.push_back(other);
    }
    auto channel = engine_->open(from, to, window);
    if (from == rank()) {
      own_ = std::move(channel);
    } else {
      others_.push_back({.rank = from, .channel = std::move(channel)});
    }
  }
}

void EndAgreement::say(const Lookahead& mine) {
  common_.apply(rank(), mine);
  if (!own_) return;
  untold_ = mine;
  tell();
}

/// Whether all have been sent what this rank has said.
bool EndAgreement::tell() {
  if (!untold_) return true;
  const Bytes message = encode(*untold_);
  const auto deadline = Deadline::after(options_.timeout);
  Block block = allocate(*engine_, message.size(), deadline, options_.stage);
  std::ranges::copy(message, block.memory().begin());  // not payload: what ranks say to each other
  if (!engine_->try_publish(*own_, block, message.size())) return false;
  told_.apply(0, *std::exchange(untold_, std::nullopt));
  return true;
}

CommonEnd::Outcome EndAgreement::await(std::int64_t item) {
  const auto deadline = Deadline::after(options_.timeout);
  Reminder reminder(options_.remind_after);
  for (;;) {
    tell();
    const auto known = common_.outcome(item);
    // Told before it is given: others may wait for that word while this rank's caller waits for them.
    if (known && (!own_ || told_.knows(0, item))) return *known;
    if (!hear()) wait_for(silent(item), item, deadline, reminder);
  }
}

/// A word of each. Whether there was any.
bool EndAgreement::hear() {
  bool heard = false;
  for (Other& other : others_) {
    const auto received = engine_->try_receive(*other.channel);
    other.ended = received.ended;
    if (!received.message) continue;
    common_.apply(other.rank, decode<Lookahead>(received.message->bytes));
    heard = true;
  }
  return heard;
}

/// Those whose word on the item is missing.
std::vector<const EndAgreement::Other*> EndAgreement::silent(std::int64_t item) {
  std::vector<const Other*> silent;
  for (const Other& other : others_) {
    if (common_.knows(other.rank, item)) continue;
    if (other.ended) {
      check_group(*engine_);
      throw_left(*job_, other.rank,
                 fmt::format("item {} of {}: ranks begin and leave an epoch together", item, options_.stage));
    }
    silent.push_back(&other);
  }
  return silent;
}

void EndAgreement::wait_for(const std::vector<const Other*>& silent, std::int64_t item, Deadline deadline,
                            Reminder& reminder) {
  // Of all, also those whose word is known: one that has no room to tell others waits for this rank to receive.
  std::vector<Channel*> receive, room;
  for (const Other& other : others_) {
    if (!other.ended) receive.push_back(other.channel.get());
  }
  if (untold_) room.push_back(own_.get());
  const int rank = silent.empty() ? others_.front().rank : silent.front()->rank;
  const Waiting waiting(*job_, options_.stage, item, rank);
  const auto explain = [&] {
    const auto waited = options_.timeout - std::min(options_.timeout, deadline.remaining());
    return explain_wait(*job_, options_.stage, rank, waited);
  };
  const WaitFor conditions{.receive = receive, .publish = room, .poll = &options_.poll};
  if (reminder.wait(*engine_, conditions, deadline, explain) == Woken::timeout) throw Timeout(explain());
}

}  // namespace levada::pipeline
