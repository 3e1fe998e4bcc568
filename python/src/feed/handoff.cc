#include "python/src/feed/handoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/transfer/outbox.h"
#include "levada/tree/schema.h"

namespace levada::python {
namespace {

constexpr Duration long_wait = std::chrono::milliseconds(500);
constexpr Duration poll_interval = std::chrono::milliseconds(100);
constexpr std::uint32_t cursor_version = 3;
// Values for the state in a cursor.
constexpr std::uint8_t earlier_state = 0, packed_state = 1, failed_state = 2, no_state = 3;
constexpr std::string_view cursor_magic = "levada iterable";

/// Returns the extent along dim 0 of the first tensor that has one.
std::optional<std::int64_t> rows_of(const FlatTree& item) {
  for (const Leaf& leaf : item.leaves) {
    const auto* tensor = std::get_if<Tensor>(&leaf);
    if (tensor != nullptr && tensor->shape().rank() > 0) return tensor->shape()[0];
  }
  return std::nullopt;
}

}  // namespace

bool is_pickle(const Leaf& leaf) {
  constexpr std::array pickle_begin = {std::byte{0x80}, std::byte{5}};  // of protocol 5, which to_tree() writes
  const auto* bytes = std::get_if<Bytes>(&leaf);
  return bytes != nullptr && bytes->size() >= pickle_begin.size() &&
         std::equal(pickle_begin.begin(), pickle_begin.end(), bytes->begin());
}

std::optional<Handoff::HandoffRequest> Handoff::wanted() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (stop_ && stop_->expired()) return std::nullopt;
    if (wanted_) return wanted_;
    if (stop_) changed_.wait_until(lock, stop_->at());
    else changed_.wait(lock);
  }
}

void Handoff::answer(Answer answer) {
  {
    const std::lock_guard lock(mutex_);
    wanted_.reset();
    if (!stop_ || !stop_->expired()) answer_ = std::move(answer);
  }
  changed_.notify_all();
}

void Handoff::give() {
  {
    const std::lock_guard lock(mutex_);
    if (!wanted_ || !wanted_->repeats) {
      given_ = position_;
      mark_ = {position_ - 1, prepared_.digest};
      keep_state(std::exchange(prepared_.state, std::nullopt), prepared_.since);
    }
  }
  answer(std::exchange(prepared_, {}));
}

void Handoff::report_sizes(std::vector<SampleSize> sizes, std::optional<LoaderState> state, std::int64_t since,
                           std::uint64_t digest) {
  {
    const std::lock_guard lock(mutex_);
    ended_ = wanted_ && std::cmp_less(sizes.size(), wanted_->taken);
    position_ += static_cast<std::int64_t>(sizes.size());
    given_ = position_;
    if (!sizes.empty()) mark_ = {position_ - 1, digest};
    keep_state(std::move(state), since);
  }
  answer(std::move(sizes));
}

void Handoff::report_progress(std::int64_t number, std::int64_t all) {
  const std::lock_guard lock(mutex_);
  progress_ = number < all ? fmt::format("{}{} of {}, ", rereading, number, all) : std::string();
}

std::string Handoff::activity() const {
  const std::lock_guard lock(mutex_);
  return progress_ + activity_;
}

void Handoff::keep_state(std::optional<LoaderState> state, std::int64_t since) {
  if (!state) return;
  state_ = std::move(state);
  state_position_ = position_ - since;
  state_next_ = -1;
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

Handoff::Answer Handoff::ask(HandoffRequest wanted) {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = std::move(wanted);
  }
  if (make_) make_();
  else changed_.notify_all();
  auto stalled = Deadline::after(long_wait);
  std::unique_lock lock(mutex_);
  while (!answer_) {
    const bool was_interrupted = make_ != nullptr;  // before it could answer
    if (was_interrupted || (stop_ && stop_->expired())) {
      wanted_.reset();
      return Abandoned{};
    }
    wait_for_answer(lock, stalled);
  }
  auto given = std::move(*answer_);
  answer_.reset();
  return given;
}

void Handoff::wait_for_answer(std::unique_lock<std::mutex>& lock, Deadline& stalled) {
  const auto until = Deadline::after(poll_interval).at();
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

template <typename T>
std::optional<T> Handoff::expect(HandoffRequest wanted) {
  auto answer = ask(std::move(wanted));
  if (const auto* failure = std::get_if<Failure>(&answer)) throw_error(failure->kind, failure->message);
  if (std::holds_alternative<Abandoned>(answer)) throw ReadAbandoned();
  if (std::holds_alternative<End>(answer)) return std::nullopt;
  return std::get<T>(std::move(answer));
}

std::optional<Tree> Handoff::read(std::int64_t first, std::int64_t, Memory& memory) {
  const auto item = first / samples_;
  if (const auto all = size(); all && item == given_ - 1) {
    return adopt(expect<Item>({.gathered = {}, .repeats = true}).value(), memory);
  } else if (all) {
    return std::nullopt;
  }
  const auto skipped = item - position_;
  if (skipped < 0) throw InvalidArgument(fmt::format("an iterator cannot return item {} again", item));
  {
    const std::lock_guard lock(mutex_);
    position_ = item + 1;
  }
  auto made = expect<Item>({.skipped = skipped, .gathered = {}});
  if (!made) return std::nullopt;
  auto tree = adopt(std::move(*made), memory);
  if (cuts_rows_) expect_rows(tree);
  if (!counts_rows_) return tree;
  const auto rows = rows_of(flatten(tree));
  if (!rows) throw SourceError("an item has no tensor whose rows could be counted; omit batch_size=");
  if (*rows != samples_) {
    // Determining whether it is the last one requires another request, before which borrowed memory must be returned.
    auto* blocks = dynamic_cast<BlockMemory*>(&memory);
    if (blocks != nullptr) tree = unflatten(blocks->copy_in(flatten(std::exchange(tree, {}))));
    expect_last(*rows);
  }
  if (*rows == 0) return std::nullopt;
  return tree;
}

Tree Handoff::adopt(Item item, Memory& memory) const {
  auto* blocks = dynamic_cast<BlockMemory*>(&memory);
  if (item.place && blocks != nullptr) blocks->adopt(std::move(item.place->block), item.place->used);
  return std::move(item.tree);
}

void Handoff::expect_rows(const Tree& item) const {
  const auto flat = flatten(item);
  const auto rows = rows_of(flat);
  for (std::size_t i = 0; i < flat.leaves.size(); ++i) {
    const auto* tensor = std::get_if<Tensor>(&flat.leaves[i]);
    if (tensor == nullptr || tensor->shape().rank() == 0 || tensor->shape()[0] == *rows) continue;
    throw InvalidArgument(fmt::format(
        "{0} of item {1} has {2} rows, but the batch has {3}, which divide=\"split\" divides over the ranks: name the "
        "placement of every field, such as layout={{\"{0}\": \"replicate(dp)\"}}, or give {0} {3} rows",
        printable(flat.schema.leaves()[i].path), position_ - 1, tensor->shape()[0], *rows));
  }
}

std::int64_t Handoff::num_rows(const FlatTree& batch, std::int64_t samples) const {
  return counts_rows_ ? samples : rows_of(batch).value_or(samples_) * samples / samples_;
}

std::vector<SampleSize> Handoff::sizes(std::int64_t first, std::int64_t count) {
  if (size()) return {};
  const auto skipped = first - position_;
  if (skipped < 0) throw InvalidArgument(fmt::format("an iterator cannot return item {} again", first));
  {
    const std::lock_guard lock(mutex_);
    position_ = taken_ = first;
  }
  auto sizes = expect<std::vector<SampleSize>>({.skipped = skipped, .taken = count, .gathered = {}});
  return sizes ? std::move(*sizes) : std::vector<SampleSize>();
}

Tree Handoff::gather(std::span<const std::int64_t> samples, Memory& memory) {
  HandoffRequest wanted;
  for (const auto sample : samples) wanted.gathered.push_back(sample - taken_);
  return adopt(expect<Item>(std::move(wanted)).value(), memory);
}

void Handoff::expect_last(std::int64_t rows) {
  const auto what = fmt::format("item {} has {} rows where a step takes {}", position_ - 1, rows, samples_);
  if (rows > samples_) throw SourceError(what + "; yield batches of batch x dp rows");
  if (expect<Item>({.gathered = {}})) throw SourceError(what + ", and is not the last: only that may have fewer");
  const std::lock_guard lock(mutex_);
  lacking_ = samples_ - rows;
}

std::string Handoff::difference_remedy() const {
  return "every rank that reads must yield the same items in the same order: seed their loaders alike and shard none "
         "of "
         "them, or let one rank read (readers=\"one\")";
}

Bytes Handoff::cursor(std::int64_t next) const {
  const std::lock_guard lock(mutex_);
  const auto counted = counts_rows_ ? next : next / samples_;
  if (!state_) return IterableCursor{.next = counted, .state = {}, .is_counted = true, .mark = mark_}.encode();
  if (state_next_ < 0) state_next_ = next;
  return IterableCursor{
      .next = counted, .position = state_position_, .state = state_next_ == next ? state_ : std::nullopt, .mark = mark_}
      .encode();
}

Bytes IterableCursor::encode() const {
  ByteWriter writer;
  writer.put_sized(cursor_magic);
  writer.put(cursor_version);
  writer.put(next);
  writer.put(position);
  writer.put(mark.item);
  writer.put(mark.digest);
  if (!state) {
    writer.put(is_counted ? no_state : earlier_state);
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
  IterableCursor cursor{.next = next, .position = reader.get<std::int64_t>(), .state = {}};
  cursor.mark = {reader.get_at_least<std::int64_t>(-1, "item"), reader.get<std::uint64_t>()};
  const auto form = reader.get<std::uint8_t>();
  if (form == packed_state) cursor.state = LoaderState{reader.get_bytes(), {}};
  else if (form == failed_state) cursor.state = LoaderState{{}, reader.get_string()};
  else if (form == no_state) cursor.is_counted = true;
  else if (form != earlier_state) reader.fail("a state of no known form");
  reader.expect_end();
  constexpr auto max_position = std::int64_t{1} << 62;
  if (std::min(cursor.next, cursor.position) < 0) reader.fail("a negative position");
  if (std::max(cursor.next, cursor.position) > max_position) reader.fail("a position beyond 2^62");
  return cursor;
}

}  // namespace levada::python
