#include "python/src/handoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "levada/base/error.h"
#include "levada/transfer/outbox.h"
#include "levada/tree/schema.h"

namespace levada::python {
namespace {

constexpr Duration long_wait = std::chrono::milliseconds(500);
constexpr Duration moment = std::chrono::milliseconds(100);
constexpr std::uint32_t cursor_version = 2;
// What a cursor says of its state.
constexpr std::uint8_t earlier_state = 0, packed_state = 1, failed_state = 2;
constexpr std::string_view cursor_magic = "levada iterable";

/// The extent along dim 0 of the first tensor that has one.
std::int64_t rows_of(const Tree& item) {
  const auto flat = flatten(item);
  for (const Leaf& leaf : flat.leaves) {
    const auto* tensor = std::get_if<Tensor>(&leaf);
    if (tensor != nullptr && tensor->shape().rank() > 0) return tensor->shape()[0];
  }
  throw SourceError("an item has no tensor whose rows could be counted; leave out batch=");
}

}  // namespace

std::int64_t Handoff::wanted() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (stop_ && stop_->expired()) return 0;
    if (wanted_ > 0) return wanted_;
    if (stop_) changed_.wait_until(lock, stop_->at());
    else changed_.wait(lock);
  }
}

void Handoff::answer(Answer answer) {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = 0;
    if (!stop_ || !stop_->expired()) answer_ = std::move(answer);
  }
  changed_.notify_all();
}

void Handoff::give() {
  {
    const std::lock_guard lock(mutex_);
    given_ = position_;
    if (prepared_.state) {
      state_ = std::exchange(prepared_.state, std::nullopt);
      state_position_ = position_ - prepared_.since;
      state_next_ = -1;
    }
  }
  answer(std::exchange(prepared_, {}));
}

void Handoff::end(std::int64_t more) {
  {
    const std::lock_guard lock(mutex_);
    given_ += more;
    ended_ = true;
  }
  answer(End{});
}

void Handoff::fail(ErrorKind kind, std::string message) {
  answer(Failure{kind, std::move(message)});
}

void Handoff::stop(Duration grace) {
  if (current_process() != process_) return;
  {
    const std::lock_guard lock(mutex_);
    const auto deadline = Deadline::after(grace);
    if (!stop_ || deadline.at() < stop_->at()) stop_ = deadline;
  }
  changed_.notify_all();
}

Handoff::Answer Handoff::ask(std::int64_t items) {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = items;
  }
  if (make_) make_();
  else changed_.notify_all();
  auto stalled = Deadline::after(long_wait);
  std::unique_lock lock(mutex_);
  while (!answer_) {
    const bool was_interrupted = make_ != nullptr;  // before it could say anything
    if (was_interrupted || (stop_ && stop_->expired())) {
      wanted_ = 0;
      return Abandoned{};
    }
    wait_for_answer(lock, stalled);
  }
  auto given = std::move(*answer_);
  answer_.reset();
  return given;
}

void Handoff::wait_for_answer(std::unique_lock<std::mutex>& lock, Deadline& stalled) {
  const auto until = Deadline::after(moment).at();
  if (changed_.wait_until(lock, stop_ ? std::min(stop_->at(), until) : until) != std::cv_status::timeout) return;
  lock.unlock();
  if (waiting_) waiting_();
  if (stalled_ && stalled.expired()) {
    stalled_();
    stalled = Deadline::after(long_wait);
  }
  lock.lock();
}

std::optional<std::int64_t> Handoff::size() const {
  const std::lock_guard lock(mutex_);
  return ended_ ? std::optional(given_ * samples_ - lacking_) : std::nullopt;
}

std::optional<Tree> Handoff::read(std::int64_t first, std::int64_t, Memory& memory) {
  if (size()) return std::nullopt;
  const auto item = first / samples_;
  const auto items = item + 1 - position_;
  if (items < 1) throw InvalidArgument(fmt::format("an iterator cannot give item {} again", item));
  {
    const std::lock_guard lock(mutex_);
    position_ = item + 1;
  }
  auto given = ask(items);
  if (const auto* failure = std::get_if<Failure>(&given)) throw_error(failure->kind, failure->message);
  if (std::holds_alternative<Abandoned>(given)) throw ReadAbandoned();
  if (std::holds_alternative<End>(given)) return std::nullopt;
  auto& made = std::get<Item>(given);
  auto* blocks = dynamic_cast<BlockMemory*>(&memory);
  if (made.place && blocks != nullptr) blocks->adopt(std::move(made.place->block), made.place->used);
  made.place.reset();
  if (!counts_rows_) return std::move(made.tree);
  const auto rows = rows_of(made.tree);
  if (rows != samples_) {
    // To see whether it is the last takes asking for more, when what is lent has to be given back.
    if (blocks != nullptr) made.tree = unflatten(blocks->copy_in(flatten(std::exchange(made.tree, {}))));
    expect_last(rows);
  }
  if (rows == 0) return std::nullopt;
  return std::move(made.tree);
}

void Handoff::expect_last(std::int64_t rows) {
  const auto told = fmt::format("item {} has {} rows where a step takes {}", position_ - 1, rows, samples_);
  if (rows > samples_) throw SourceError(told + "; give batches of batch x dp rows");
  const auto after = ask(1);
  if (std::holds_alternative<Item>(after)) throw SourceError(told + ", and is not the last: only that may have fewer");
  if (const auto* failure = std::get_if<Failure>(&after)) throw_error(failure->kind, failure->message);
  if (std::holds_alternative<Abandoned>(after)) throw ReadAbandoned();
  const std::lock_guard lock(mutex_);
  lacking_ = samples_ - rows;
}

Bytes Handoff::cursor(std::int64_t next) const {
  const std::lock_guard lock(mutex_);
  if (!state_) return {};
  if (state_next_ < 0) state_next_ = next;
  return IterableCursor{next, state_position_, state_next_ == next ? state_ : std::nullopt}.encode();
}

Bytes IterableCursor::encode() const {
  ByteWriter writer;
  writer.put_sized(cursor_magic);
  writer.put(cursor_version);
  writer.put(next);
  writer.put(position);
  if (!state) {
    writer.put(earlier_state);
  } else if (state->failure.empty()) {
    writer.put(packed_state);
    writer.put_sized(ByteView(state->message));
  } else {
    writer.put(failed_state);
    writer.put_sized(std::string_view(state->failure));
  }
  return std::move(writer).take();
}

bool IterableCursor::is_one(ByteView bytes) {
  ByteWriter writer;
  writer.put_sized(cursor_magic);
  const Bytes begin = std::move(writer).take();
  return bytes.size() > begin.size() && std::ranges::equal(begin, bytes.first(begin.size()));
}

IterableCursor IterableCursor::decode(ByteView bytes) {
  ByteReader reader(bytes);
  if (reader.get_string() != cursor_magic) reader.fail("this is no state of a feed of an iterable");
  if (reader.get<std::uint32_t>() != cursor_version) reader.fail("a state of another version");
  const auto next = reader.get<std::int64_t>();
  IterableCursor cursor{next, reader.get<std::int64_t>(), {}};
  const auto form = reader.get<std::uint8_t>();
  if (form == packed_state) cursor.state = LoaderState{reader.get_bytes(), {}};
  else if (form == failed_state) cursor.state = LoaderState{{}, reader.get_string()};
  else if (form != earlier_state) reader.fail("a state of no known form");
  reader.expect_end();
  if (cursor.next < 0 || cursor.position < 0) reader.fail("a negative position");
  return cursor;
}

}  // namespace levada::python
