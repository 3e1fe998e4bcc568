#include "levada/feed/protocol.h"

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

}  // namespace levada

namespace levada::feed_protocol {
namespace {

enum class Tag : std::uint8_t { ready = 1, stopped = 2, stop_asked = 3, left = 4, granted = 5, ended = 6 };

void put_end(ByteWriter& writer, const FeedEnd& end) {
  writer.put(end.cause);
  writer.put(end.error);
  writer.put(std::int32_t{end.rank});
  writer.put(end.step);
  writer.put_sized(std::string_view(end.message));
}

FeedEnd get_end(ByteReader& reader) {
  FeedEnd end;
  end.cause = reader.get_enum(FeedEnd::Cause::exhausted, FeedEnd::Cause::failed, "cause of an end");
  end.error = reader.get_enum(ErrorKind::invalid_argument, ErrorKind::engine, "kind of error");
  end.rank = reader.get<std::int32_t>();
  end.step = reader.get_at_least<std::int64_t>(0, "step");
  end.message = reader.get_string();
  return end;
}

struct Encoder {
  ByteWriter writer;

  void operator()(const Ready& event) {
    writer.put(Tag::ready);
    writer.put(std::int32_t{event.reader});
    writer.put(event.rounds);
    writer.put(static_cast<std::uint8_t>(event.ends_step));
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
    writer.put(event.step);
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
      const auto rounds = reader.get_at_least<std::int64_t>(0, "rounds");
      const auto ends_step = reader.get<std::uint8_t>();
      if (ends_step > 1) reader.fail("an event that is neither the end of a step nor none");
      return Ready{number, rounds, ends_step == 1};
    }
    case Tag::stopped: {
      const auto number = reader.get<std::int32_t>();
      return Stopped{number, get_end(reader)};
    }
    case Tag::stop_asked: return StopAsked{reader.get<std::int32_t>()};
    case Tag::left: {
      const auto rank = reader.get<std::int32_t>();
      const auto step = reader.get_at_least<std::int64_t>(0, "step");
      return Left{rank, step, reader.get_string()};
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
  if (event.rounds > known.rounds) known = event;
  settle();
}

void Lead::apply(const Stopped& event) {
  auto& stopped = stopped_.at(static_cast<std::size_t>(event.reader));
  if (!stopped) stopped = event.end;
  settle();
}

void Departure::apply(const Left& event) {
  const bool concerns_more = !first_ || event.step < first_->step ||
                             (event.step == first_->step && first_->reason.empty() && !event.reason.empty());
  if (concerns_more) first_ = event;
}

void Lead::apply(const StopAsked& event) {
  if (!stop_asked_) stop_asked_ = event;
  settle();
}

const Ready& Lead::slowest() const {
  return *std::ranges::min_element(ready_, {}, &Ready::rounds);
}

std::int64_t Lead::granted() const {
  const std::int64_t sent = slowest().rounds;
  return end_ ? std::min(sent, end_->step) : sent;
}

void Lead::settle() {
  if (end_) return;
  const FeedEnd* nearest = nullptr;
  for (const auto& stopped : stopped_) {
    if (!stopped || (nearest != nullptr && stopped->step > nearest->step)) continue;
    const bool worse = nearest == nullptr || stopped->step < nearest->step ||
                       (stopped->cause == FeedEnd::Cause::failed && nearest->cause != FeedEnd::Cause::failed);
    if (worse) nearest = &*stopped;
  }
  if (nearest != nullptr && granted() >= nearest->step) {
    end_ = *nearest;
  } else if (stop_asked_ && slowest().ends_step) {
    end_ = FeedEnd{.cause = FeedEnd::Cause::stopped, .step = granted(), .rank = stop_asked_->rank, .message = {}};
  }
}

void Follower::apply(const Granted& event) {
  granted_ = std::max(granted_, event.rounds);
}

}  // namespace levada::feed_protocol
