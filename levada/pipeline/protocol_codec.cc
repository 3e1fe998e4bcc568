// The messages of a pipeline as bytes.
#include <fmt/format.h>

#include <algorithm>

#include "levada/pipeline/protocol.h"

namespace levada::pipeline::protocol {
namespace {

enum class Tag : std::uint8_t { reset = 1, limit = 2, pause = 3, resume = 4, report = 5, shutdown = 6 };
enum class MarksAs : std::uint8_t { none = 0, consecutive = 1, listed = 2 };

std::uint8_t get_code(ByteReader& reader, int first, int last) {
  const auto code = reader.get<std::uint8_t>();
  if (code < first || code > last) reader.fail(fmt::format("no such code as {}", code));
  return code;
}

std::int64_t get_number(ByteReader& reader) {
  const auto number = reader.get<std::int64_t>();
  if (number < 0) reader.fail(fmt::format("a number of {}", number));
  return number;
}

/// What takes at most 4 GiB; a larger cursor or exception is refused by put_sized().
Bytes get_bytes(ByteReader& reader) {
  const ByteView bytes = reader.get_sized();
  return {bytes.begin(), bytes.end()};
}

template <typename T>
void put_all(ByteWriter& writer, const std::vector<T>& values, void (*put)(ByteWriter&, const T&)) {
  writer.put(static_cast<std::uint32_t>(values.size()));
  for (const T& value : values) put(writer, value);
}

template <typename T>
std::vector<T> get_all(ByteReader& reader, std::size_t min_bytes, T (*get)(ByteReader&)) {
  std::vector<T> values;
  for (auto count = reader.get_count(min_bytes); count > 0; --count) values.push_back(get(reader));
  return values;
}

void put_start(ByteWriter& writer, const Start& start) {
  writer.put(start.drawn);
  writer.put(start.given);
  writer.put(start.drop);
  writer.put_sized(start.cursor);
}
Start get_start(ByteReader& reader) {
  const auto drawn = get_number(reader);
  const auto given = get_number(reader);
  const auto drop = get_number(reader);
  return {drawn, given, drop, get_bytes(reader)};
}

void put_place(ByteWriter& writer, const Place& place) {
  writer.put(place.number);
  writer.put_sized(place.cursor);
}
Place get_place(ByteReader& reader) {
  const auto number = get_number(reader);
  return {number, get_bytes(reader)};
}

void put_number(ByteWriter& writer, const std::int64_t& number) {
  writer.put(number);
}

struct OrderWriter {
  ByteWriter& writer;

  void operator()(const Reset& reset) const {
    writer.put(Tag::reset);
    writer.put(reset.epoch);
    put_place(writer, reset.dispatcher);
    put_all(writer, reset.workers, put_start);
    writer.put(reset.mark);
  }
  void operator()(const Limit& limit) const {
    writer.put(Tag::limit);
    writer.put(limit.dealt);
    put_all(writer, limit.given, put_number);
  }
  void operator()(const Pause&) const { writer.put(Tag::pause); }
  void operator()(const Resume&) const { writer.put(Tag::resume); }
  void operator()(const Report& report) const {
    writer.put(Tag::report);
    writer.put(std::uint8_t{report.with_trace});
  }
  void operator()(const Shutdown&) const { writer.put(Tag::shutdown); }
};

decltype(Order::what) get_order(ByteReader& reader) {
  switch (static_cast<Tag>(get_code(reader, 1, static_cast<int>(Tag::shutdown)))) {
    case Tag::reset: {
      Reset reset;
      reset.epoch = reader.get<std::int64_t>();
      reset.dispatcher = get_place(reader);
      reset.workers = get_all(reader, 28, get_start);
      reset.mark = get_number(reader);
      return reset;
    }
    case Tag::limit: {
      Limit limit;
      limit.dealt = get_number(reader);
      limit.given = get_all(reader, 8, get_number);
      return limit;
    }
    case Tag::pause: return Pause{};
    case Tag::resume: return Resume{};
    case Tag::report: return Report{.with_trace = get_code(reader, 0, 1) == 1};
    case Tag::shutdown: break;
  }
  return Shutdown{};
}

void put_of_stage(ByteWriter& writer, const ProcessTotals::OfStage& stage) {
  for (const auto number : {stage.items, stage.skipped, stage.busy_ns, stage.waited_ns}) writer.put(number);
}
ProcessTotals::OfStage get_of_stage(ByteReader& reader) {
  ProcessTotals::OfStage stage;
  for (auto* number : {&stage.items, &stage.skipped, &stage.busy_ns, &stage.waited_ns}) *number = get_number(reader);
  return stage;
}

bool are_consecutive(const std::vector<std::int64_t>& marks) {
  return std::adjacent_find(marks.begin(), marks.end(), [](auto a, auto b) { return b != a + 1; }) == marks.end();
}

void put_marks(ByteWriter& writer, const std::vector<std::int64_t>& marks) {
  if (marks.empty()) return writer.put(MarksAs::none);
  if (are_consecutive(marks)) {
    writer.put(MarksAs::consecutive);
    return writer.put(marks.front());
  }
  writer.put(MarksAs::listed);
  put_all(writer, marks, put_number);
}

/// Items in a message; none has more, so that a message that lies cannot ask for memory without end.
constexpr std::uint32_t most_items = 1 << 20;

std::vector<std::int64_t> get_marks(ByteReader& reader, std::uint32_t count) {
  std::vector<std::int64_t> marks;
  switch (static_cast<MarksAs>(get_code(reader, 0, 2))) {
    case MarksAs::none: return marks;
    case MarksAs::consecutive: {
      const std::int64_t first = get_number(reader);
      if (first > no_bound - count) reader.fail("marks beyond all bounds");
      for (std::uint32_t i = 0; i < count; ++i) marks.push_back(first + i);
      break;
    }
    case MarksAs::listed: marks = get_all(reader, 8, get_number);
  }
  if (marks.size() != count) reader.fail(fmt::format("{} marks for {} items", marks.size(), count));
  return marks;
}

}  // namespace

Bytes encode(const Order& order) {
  ByteWriter writer;
  writer.put(order.number);
  std::visit(OrderWriter{writer}, order.what);
  return std::move(writer).take();
}

Order decode_order(ByteView bytes) {
  ByteReader reader(bytes);
  Order order;
  order.number = reader.get<std::uint64_t>();
  order.what = get_order(reader);
  reader.expect_end();
  return order;
}

Bytes encode(const Answer& answer) {
  ByteWriter writer;
  writer.put(answer.number);
  writer.put_sized(std::string_view(answer.process));
  const ProcessTotals& totals = answer.totals;
  put_all(writer, totals.stages, put_of_stage);
  writer.put(totals.messages);
  writer.put(totals.wakeups);
  writer.put(totals.bytes);
  writer.put(totals.copied);
  writer.put_sized(answer.trace);
  return std::move(writer).take();
}

Answer decode_answer(ByteView bytes) {
  ByteReader reader(bytes);
  Answer answer;
  answer.number = reader.get<std::uint64_t>();
  answer.process = reader.get_string();
  answer.totals.stages = get_all(reader, 32, get_of_stage);
  answer.totals.messages = get_number(reader);
  answer.totals.wakeups = get_number(reader);
  answer.totals.bytes = reader.get<std::uint64_t>();
  answer.totals.copied = reader.get<std::uint64_t>();
  answer.trace = get_bytes(reader);
  reader.expect_end();
  return answer;
}

Bytes encode(const Items& items) {
  ByteWriter writer;
  writer.put(items.pass);
  writer.put(items.first);
  writer.put(items.count);
  writer.put(items.ending);
  if (items.ending == Ending::failed) write_failure(writer, items.failure.value_or(Failure{}));
  put_marks(writer, items.marks);
  writer.put(items.reached);
  writer.put(std::uint8_t{items.start.has_value()});
  if (items.start) put_start(writer, *items.start);
  put_all(writer, items.places, put_place);
  return std::move(writer).take();
}

Items decode_items(ByteView bytes) {
  ByteReader reader(bytes);
  Items items;
  items.pass = reader.get<std::uint64_t>();
  items.first = get_number(reader);
  items.count = reader.get<std::uint32_t>();
  if (items.count > most_items) reader.fail(fmt::format("{} items in a message", items.count));
  items.ending = static_cast<Ending>(get_code(reader, 1, static_cast<int>(Ending::left)));
  if (items.ending == Ending::failed) items.failure = read_failure(reader);
  items.marks = get_marks(reader, items.count);
  items.reached = get_number(reader);
  if (get_code(reader, 0, 1) == 1) items.start = get_start(reader);
  items.places = get_all(reader, 12, get_place);
  reader.expect_end();
  return items;
}

}  // namespace levada::pipeline::protocol
