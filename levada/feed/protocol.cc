#include "levada/feed/protocol.h"

#include <fmt/format.h>

#include <algorithm>

namespace levada {

std::string_view to_string(FeedEnd::Cause cause) {
  switch (cause) {
    case FeedEnd::Cause::exhausted: return "exhausted";
    case FeedEnd::Cause::steps: return "steps";
    case FeedEnd::Cause::stopped: return "stopped";
    case FeedEnd::Cause::failed: return "failed";
    case FeedEnd::Cause::left: return "left";
    case FeedEnd::Cause::abandoned: return "abandoned";
  }
  return "unknown";
}

std::string to_string(const FeedPosition& position) {
  const auto step = fmt::format("step {}", position.step);
  return position.micro == 0 ? step : fmt::format("{}, micro-batch {}", step, position.micro);
}

}  // namespace levada

namespace levada::feed_protocol {
namespace {

enum class Tag : std::uint8_t { ready = 1, stopped = 2, stop_asked = 3, left = 4, granted = 5, ended = 6 };

void put_position(ByteWriter& writer, const FeedPosition& position) {
  for (const auto number : {position.round, position.step, position.micro}) writer.put(number);
}

FeedPosition get_position(ByteReader& reader) {
  FeedPosition position{.round = reader.get_at_least<std::int64_t>(0, "round")};
  position.step = reader.get_at_least<std::int64_t>(0, "step");
  position.micro = reader.get_at_least<std::int64_t>(0, "micro-batch");
  const bool fits = position.step <= position.round && position.micro <= position.round - position.step;
  if (!fits) reader.fail("a position of more steps and micro-batches than rounds");
  return position;
}

void put_end(ByteWriter& writer, const FeedEnd& end) {
  writer.put(end.cause);
  writer.put(end.error);
  writer.put(std::int32_t{end.rank});
  put_position(writer, end.at);
  writer.put_sized(std::string_view(end.message));
}

FeedEnd get_end(ByteReader& reader) {
  FeedEnd end;
  end.cause = reader.get_enum(FeedEnd::Cause::exhausted, FeedEnd::Cause::failed, "cause of an end");
  end.error = reader.get_enum(ErrorKind::invalid_argument, ErrorKind::engine, "kind of error");
  end.rank = reader.get<std::int32_t>();
  end.at = get_position(reader);
  end.message = reader.get_string();
  return end;
}

struct Encoder {
  ByteWriter writer;

  void operator()(const Ready& event) {
    writer.put(Tag::ready);
    writer.put(std::int32_t{event.reader});
    put_position(writer, event.at);
    writer.put(event.division);
  }
  void operator()(const Stopped& event) {
    writer.put(Tag::stopped);
    writer.put(std::int32_t{event.reader});
    put_end(writer, event.end);
  }
  void operator()(const StopAsked& event) {
    writer.put(Tag::stop_asked);
    writer.put(std::int32_t{event.rank});
  }
  void operator()(const Left& event) {
    writer.put(Tag::left);
    writer.put(std::int32_t{event.rank});
    put_position(writer, event.at);
    writer.put_sized(std::string_view(event.reason));
  }
  void operator()(const Granted& event) {
    writer.put(Tag::granted);
    writer.put(event.rounds);
  }
  void operator()(const Ended& event) {
    writer.put(Tag::ended);
    put_end(writer, event.end);
  }
};

Event get_event(ByteReader& reader) {
  switch (reader.get_enum(Tag::ready, Tag::ended, "event")) {
    case Tag::ready: {
      const auto number = reader.get<std::int32_t>();
      const auto at = get_position(reader);
      return Ready{number, at, reader.get<std::uint64_t>()};
    }
    case Tag::stopped: {
      const auto number = reader.get<std::int32_t>();
      return Stopped{number, get_end(reader)};
    }
    case Tag::stop_asked: return StopAsked{reader.get<std::int32_t>()};
    case Tag::left: {
      const auto rank = reader.get<std::int32_t>();
      const auto at = get_position(reader);
      return Left{rank, at, reader.get_string()};
    }
    case Tag::granted: return Granted{reader.get_at_least<std::int64_t>(0, "rounds")};
    case Tag::ended: break;
  }
  return Ended{get_end(reader)};
}

}  // namespace

Bytes encode(const Event& event) {
  Encoder encoder;
  std::visit(encoder, event);
  return std::move(encoder.writer).take();
}

Event decode(ByteView bytes) {
  ByteReader reader(bytes);
  Event event = get_event(reader);
  reader.expect_end();
  return event;
}

void Lead::apply(const Ready& event) {
  auto& known = ready_.at(static_cast<std::size_t>(event.reader));
  compare(event);
  if (event.at.round > known.at.round) known = event;
  std::erase_if(divided_, [end = slowest().at.round](const auto& each) { return each.first <= end; });
  settle();
}

void Lead::compare(const Ready& event) {
  const auto& first = divided_.try_emplace(event.at.round, event).first->second;
  if (end_ || first.division == event.division) return;
  const auto rank_of = [&](const Ready& ready) { return readers_.at(static_cast<std::size_t>(ready.reader)); };
  end_ = FeedEnd{.cause = FeedEnd::Cause::failed,
                 .at = slowest().at,
                 .rank = rank_of(event),
                 .error = ErrorKind::invalid_argument,
                 .message = fmt::format("it divides the samples of this step, or of one soon after it, otherwise than "
                                        "rank {}; let all ranks that read have the same samples in the same order, "
                                        "and let the functions of balance return the same for a sample on all of them",
                                        rank_of(first))};
}

void Lead::apply(const Stopped& event) {
  auto& stopped = stopped_.at(static_cast<std::size_t>(event.reader));
  if (!stopped) stopped = event.end;
  settle();
}

void Departure::apply(const Left& event) {
  const bool concerns_more = !first_ || event.at.round < first_->at.round ||
                             (event.at.round == first_->at.round && first_->reason.empty() && !event.reason.empty());
  if (concerns_more) first_ = event;
}

void Lead::apply(const StopAsked& event) {
  if (!stop_asked_) stop_asked_ = event;
  settle();
}

const Ready& Lead::slowest() const {
  return *std::ranges::min_element(ready_, {}, [](const Ready& ready) { return ready.at.round; });
}

std::int64_t Lead::granted() const {
  const std::int64_t sent = slowest().at.round;
  return end_ ? std::min(sent, end_->at.round) : sent;
}

void Lead::settle() {
  if (end_) return;
  const FeedEnd* nearest = nullptr;
  for (const auto& stopped : stopped_) {
    if (!stopped || (nearest != nullptr && stopped->at.round > nearest->at.round)) continue;
    const bool worse = nearest == nullptr || stopped->at.round < nearest->at.round ||
                       (stopped->cause == FeedEnd::Cause::failed && nearest->cause != FeedEnd::Cause::failed);
    if (worse) nearest = &*stopped;
  }
  if (nearest != nullptr && granted() >= nearest->at.round) {
    end_ = *nearest;
  } else if (stop_asked_ && slowest().at.micro == 0) {
    end_ = FeedEnd{.cause = FeedEnd::Cause::stopped, .at = slowest().at, .rank = stop_asked_->rank, .message = {}};
  }
}

void Follower::apply(const Granted& event) {
  granted_ = std::max(granted_, event.rounds);
}

}  // namespace levada::feed_protocol
