#include "levada/feed/protocol.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "levada/base/assert.h"
#include "levada/base/text.h"

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

  void put_unit(const UnitDigest& unit) {
    writer.put(std::int32_t{unit.unit});
    writer.put(unit.structure);
    writer.put(static_cast<std::uint32_t>(unit.fields.size()));
    for (const FieldDigest& field : unit.fields) {
      writer.put_sized(std::string_view(field.path));
      writer.put(field.digest);
    }
  }

  void operator()(const Ready& event) {
    writer.put(Tag::ready);
    writer.put(std::int32_t{event.reader});
    put_position(writer, event.at);
    writer.put(event.division);
    writer.put(static_cast<std::uint32_t>(event.units.size()));
    for (const UnitDigest& unit : event.units) put_unit(unit);
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

UnitDigest get_unit(ByteReader& reader) {
  UnitDigest unit{.unit = reader.get<std::int32_t>(), .structure = reader.get<std::uint64_t>(), .fields = {}};
  unit.fields.resize(reader.get_count(sizeof(std::uint32_t) + sizeof(std::uint64_t)));
  for (FieldDigest& field : unit.fields) {
    field.path = reader.get_string();
    field.digest = reader.get<std::uint64_t>();
  }
  return unit;
}

Ready get_ready(ByteReader& reader) {
  Ready ready{.reader = reader.get<std::int32_t>(), .at = get_position(reader), .units = {}};
  ready.division = reader.get<std::uint64_t>();
  ready.units.resize(reader.get_count(2 * sizeof(std::uint64_t)));
  for (UnitDigest& unit : ready.units) unit = get_unit(reader);
  return ready;
}

Event get_event(ByteReader& reader) {
  switch (reader.get_enum(Tag::ready, Tag::ended, "event")) {
    case Tag::ready: return get_ready(reader);
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

namespace {

/// Returns the fields in which two readers' batches differ: "tokens, labels".
std::string difference_between(const UnitDigest& a, const UnitDigest& b) {
  std::set<std::string> paths;
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const FieldDigest& field : one->fields) {
      if (std::ranges::find(other->fields, field) == other->fields.end()) paths.insert(printable(field.path));
    }
  }
  return paths.empty() ? "its structure" : fmt::format("{}", fmt::join(paths, ", "));
}

}  // namespace

std::string ReaderNames::of(int reader) const {
  const auto number = static_cast<std::size_t>(reader);
  const auto rank = fmt::format("rank {}", ranks.at(number));
  return hosts.empty() ? rank : fmt::format("{} on host {}", rank, printable(hosts.at(number)));
}

void Lead::apply(const Ready& event) {
  auto& known = ready_.at(static_cast<std::size_t>(event.reader));
  compare(event);
  if (event.at.round > known.round) known = event.at;
  std::erase_if(reported_, [end = slowest().round](const auto& each) { return each.first <= end; });
  settle();
}

void Lead::compare(const Ready& event) {
  auto& first = reported_.try_emplace(event.at.round, FirstReport{event.reader, event.division, {}}).first->second;
  if (first.division != event.division) {
    end_before(
        event, first.reader, ErrorKind::invalid_argument,
        fmt::format(
            "it divides the samples of this step differently from {}; all ranks that read must have the same samples "
            "in the same order, and balance functions must return the same value for a sample on all of them",
            readers_.of(std::min(first.reader, event.reader))));
  }
  for (const UnitDigest& unit : event.units) {
    const auto& [reader, known] = first.units.try_emplace(unit.unit, event.reader, unit).first->second;
    if (known == unit) continue;
    const auto whose = readers_.units == 1 ? std::string() : fmt::format(" of data-parallel rank {}", unit.unit);
    const auto [earlier, later] = std::minmax(reader, event.reader);
    end_before(event, reader, ErrorKind::source,
               fmt::format("the batch{} differs between {} and {}, in {}; {}", whose, readers_.of(earlier),
                           readers_.of(later), difference_between(known, unit), readers_.remedy));
  }
}

void Lead::end_before(const Ready& event, int other, ErrorKind error, std::string message) {
  const auto& at = ready_.at(static_cast<std::size_t>(event.reader));
  if (difference_ && difference_->at.round <= at.round) return;
  difference_ = FeedEnd{.cause = FeedEnd::Cause::failed,
                        .at = at,
                        .rank = readers_.ranks.at(static_cast<std::size_t>(std::max(event.reader, other))),
                        .error = error,
                        .message = std::move(message)};
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
  if (!stop_asked_) {
    stop_asked_ = event;
    min_rounds_ = granted() + (reads_ahead_ || readers_.ranks.size() == 1 ? 0 : 1);
  }
  settle();
}

const FeedPosition& Lead::slowest() const {
  return *std::ranges::min_element(ready_, {}, &FeedPosition::round);
}

std::int64_t Lead::granted() const {
  const std::int64_t sent = slowest().round;
  return end_ ? std::min(sent, end_->at.round) : sent;
}

void Lead::settle() {
  if (end_) return;
  const FeedEnd* nearest = nullptr;
  const auto consider = [&](const std::optional<FeedEnd>& end) {
    if (!end || (nearest != nullptr && end->at.round > nearest->at.round)) return;
    const bool worse = nearest == nullptr || end->at.round < nearest->at.round ||
                       (end->cause == FeedEnd::Cause::failed && nearest->cause != FeedEnd::Cause::failed);
    if (worse) nearest = &*end;
  };
  for (const auto& stopped : stopped_) consider(stopped);
  consider(difference_);
  if (nearest != nullptr && granted() >= nearest->at.round) {
    end_ = *nearest;
  } else if (stop_asked_ && slowest().micro == 0 && slowest().round >= min_rounds_) {
    end_ = FeedEnd{.cause = FeedEnd::Cause::stopped, .at = slowest(), .rank = stop_asked_->rank, .message = {}};
  }
  LEVADA_ASSERT(!end_ || granted() == end_->at.round, "every round before the end is granted, and none after it");
}

void Follower::apply(const Granted& event) {
  granted_ = std::max(granted_, event.rounds);
}

}  // namespace levada::feed_protocol
