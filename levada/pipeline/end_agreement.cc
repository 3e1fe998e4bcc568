#include "levada/pipeline/end_agreement.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/engine/collect.h"

namespace levada::pipeline {
namespace {

/// A rank says of an item only once all have said of the one before, so of two at most is anything under way.
constexpr int window = 2;

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

Bytes encode(const Foresight& foresight) {
  ByteWriter writer;
  writer.put(foresight.item);
  writer.put(foresight.kind);
  if (foresight.kind == Foresight::Kind::failed) write_failure(writer, foresight.failure.value_or(Failure{}));
  return std::move(writer).take();
}

Foresight decode_foresight(ByteView bytes) {
  ByteReader reader(bytes);
  Foresight foresight{.item = reader.get<std::int64_t>()};
  const auto kind = reader.get<std::uint8_t>();
  if (foresight.item < 0) reader.fail(fmt::format("item {} of an epoch", foresight.item));
  if (kind < 1 || kind > 3) reader.fail(fmt::format("an item of kind {}", kind));
  foresight.kind = static_cast<Foresight::Kind>(kind);
  if (foresight.kind == Foresight::Kind::failed) foresight.failure = read_failure(reader);
  reader.expect_end();
  return foresight;
}

EndAgreement::EndAgreement(std::shared_ptr<Engine> all_ranks, EndAgreementOptions options)
    : engine_(std::move(all_ranks)), options_(std::move(options)) {
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
      others_.push_back({from, std::move(channel)});
    }
  }
}

void EndAgreement::say(const Foresight& mine) {
  said_ = outcome_ = mine;
  failed_rank_ = mine.kind == Foresight::Kind::failed ? rank() : -1;
  if (!own_) return;
  const Bytes message = encode(mine);
  const auto deadline = Deadline::after(options_.timeout);
  Block block = allocate(*engine_, message.size(), deadline, options_.stage);
  std::ranges::copy(message, block.memory().begin());  // not payload: what ranks say to each other
  publish(*engine_, *own_, std::move(block), message.size(), deadline, options_.stage);
}

Foresight EndAgreement::await() {
  std::vector<const Other*> silent;
  for (const Other& other : others_) silent.push_back(&other);
  const auto deadline = Deadline::after(options_.timeout);
  while (!hear_all(silent)) wait_for(silent, deadline);
  return outcome_;
}

bool EndAgreement::hear_all(std::vector<const Other*>& silent) {
  std::erase_if(silent, [&](const Other* other) {
    const auto lease = engine_->try_take(*other->channel);
    if (lease) {
      hear(*other, decode_foresight(lease->bytes));
      return true;
    }
    if (!engine_->ended(*other->channel)) return false;
    throw EngineError(fmt::format("rank {} left {} before item {}: ranks begin and leave an epoch together",
                                  other->rank, options_.stage, said_.item));
  });
  return silent.empty();
}

void EndAgreement::hear(const Other& other, const Foresight& said) {
  if (said.item != said_.item) {
    throw InvalidArgument(
        fmt::format("{}: rank {} is at item {} of its epoch, rank {} at {}; ranks go on together from "
                    "states that were saved together",
                    options_.stage, other.rank, said.item, rank(), said_.item));
  }
  const bool fails = said.kind == Foresight::Kind::failed;
  const bool first = fails && (failed_rank_ < 0 || other.rank < failed_rank_);
  if (first) failed_rank_ = other.rank;
  if (first || (said.kind == Foresight::Kind::ended && outcome_.kind == Foresight::Kind::there)) outcome_ = said;
}

void EndAgreement::wait_for(const std::vector<const Other*>& silent, Deadline deadline) {
  constexpr Duration moment = std::chrono::milliseconds(50);
  std::vector<Channel*> channels;
  for (const Other* other : silent) channels.push_back(other->channel.get());
  const Waiting waiting(*engine_, options_.stage, said_.item, silent.front()->rank);
  const auto until = [&] { return options_.poll ? Deadline::after(std::min(moment, deadline.remaining())) : deadline; };
  while (engine_->wait({.take = channels}, until()) == Woken::timeout) {
    if (deadline.expired()) {
      throw Timeout(explain_wait(*engine_, options_.stage, silent.front()->rank, options_.timeout));
    }
    if (options_.poll) options_.poll();
  }
}

}  // namespace levada::pipeline
