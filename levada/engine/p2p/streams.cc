// How messages cross: the streams into which what comes is sorted.
#include <fmt/format.h>

#include <algorithm>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/engine/p2p/member.h"

namespace levada::p2p {
namespace {

constexpr auto another_ranks_channel = "it speaks on a channel of another rank";

[[noreturn]] void refuse(const char* what) {
  throw CorruptMessage(0, what);
}

/// A message's block, counted as long as somebody holds it.
class Counted {
 public:
  Counted(std::shared_ptr<const void> block, std::shared_ptr<std::atomic<int>> count,
          std::shared_ptr<EventCount> changed)
      : block_(std::move(block)), count_(std::move(count)), changed_(std::move(changed)) {
    ++*count_;
  }
  ~Counted() {
    --*count_;
    changed_->notify();
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::shared_ptr<const void> block_;
  std::shared_ptr<std::atomic<int>> count_;
  std::shared_ptr<EventCount> changed_;
};

}  // namespace

// ---- arriving

void Member::accept_locked(int from, const Head& head, Block body) {
  using Kind = Head::Kind;
  switch (head.kind) {
    case Kind::message: return accept_message_locked(from, head, std::move(body));
    case Kind::taken: return accept_taken_locked(from, head);
    case Kind::waiting: return accept_waiting_locked(from, head.key);
    case Kind::sender_closed: stream_from_locked(from, head.key).sender_closed = true; return forget_over_locked();
    case Kind::taker_closed: accept_taker_closed_locked(from, head.key); return forget_over_locked();
    case Kind::entered: return attendance_.enter(head.key, from);
    case Kind::left:
      attendance_.leave(head.key, from);
      forget_over_locked();
      return attendance_.forget_if_over(head.key);
    case Kind::aborted:
      return end_locked(
          {.kind = ErrorKind::engine, .group = head.key, .rank = head.rank, .text = std::string(as_text(head.tail))});
    case Kind::lost: return lose_locked(head.rank, as_text(head.tail));
    case Kind::ask_status: return answer_locked(from, head.key);
    case Kind::status: return hear_status_locked(from, head);
    case Kind::goodbye:
      say_goodbye_locked(from);
      peer(from).left = true;
      return forget_over_locked();
  }
}

Stream& Member::stream_from_locked(int from, std::uint64_t key) {
  Stream& stream = *stream_of_locked(key);
  const int expected = stream.opened ? stream.terms.from : stream.heard_from;
  if ((expected >= 0 && expected != from) || (stream.opened && !stream.takes)) refuse(another_ranks_channel);
  stream.heard_from = from;
  return stream;
}

void Member::accept_message_locked(int from, const Head& head, Block body) {
  Stream& stream = stream_from_locked(from, head.key);
  if (stream.opened && !stream.taking) return;
  if (!body) body = copy_of_locked(head.tail);
  const ByteView bytes = body.memory().first(head.count);
  stream.arrived.push_back({bytes, std::make_shared<const Block>(std::move(body))});
}

Block Member::copy_of_locked(ByteView bytes) {
  auto block = arrivals_->try_allocate(bytes.size());
  if (!block) throw EngineError("no memory is left for what comes");
  copy_payload(block->memory().data(), bytes.data(), bytes.size());
  return *std::move(block);
}

void Member::accept_taken_locked(int from, const Head& head) {
  const auto found = streams_.find(head.key);
  if (found == streams_.end() || !found->second->opened) return;  // closed meanwhile
  Stream& stream = *found->second;
  Stream::Taker* const taker = stream.taker(from);
  if (taker == nullptr || head.count > stream.sent || head.count < taker->taken) refuse("a count of messages taken");
  taker->taken = head.count;
}

void Member::accept_waiting_locked(int from, std::uint64_t key) {
  Stream& stream = stream_from_locked(from, key);
  stream.sender_waits = true;
  if (stream.taking && stream.taken > 0) tell_taken_locked(stream);
  else if (!peer(from).outbox.empty()) make_due_locked(from);  // perhaps that this end has closed
}

void Member::accept_taker_closed_locked(int from, std::uint64_t key) {
  Stream& stream = *stream_of_locked(key);
  if (!stream.opened) return stream.closed_early.push_back(from);
  Stream::Taker* const taker = stream.taker(from);
  if (taker == nullptr) refuse(another_ranks_channel);
  taker->closed = true;
}

std::shared_ptr<Stream> Member::stream_of_locked(std::uint64_t key) {
  auto& stream = streams_[key];
  if (!stream) stream = std::make_shared<Stream>(key);
  return stream;
}

// ---- sending

bool Member::has_room(const Stream& stream) const {
  // What all have taken may still be under way in the wire's books, whose memory is to be bounded, too.
  if (*stream.under_way >= 2 * std::int64_t{stream.terms.window}) return false;
  return std::all_of(stream.takers.begin(), stream.takers.end(), [&](const Stream::Taker& taker) {
    return taker_over(stream, taker) || stream.not_received(taker) < stream.terms.window;
  });
}

bool Member::try_publish(Group& group, Stream& stream, Block& block, std::size_t bytes) {
  expect_usable();
  {
    const std::lock_guard lock(mutex_);
    check_locked(group);
    if (block.home() != memory_) {
      throw InvalidArgument("the block to publish was not allocated from this engine; use try_allocate()");
    }
    if (!stream.sending) {
      throw InvalidArgument(fmt::format("rank {} publishes on a channel it has closed", group.rank));
    }
    if (!has_room(stream)) return false;
    const ByteView view = block.memory().first(bytes);
    send_locked(stream, {view, std::make_shared<const Block>(std::move(block))});
  }
  flush();
  return true;
}

void Member::send_locked(Stream& stream, const Arrived& message) {
  ++stream.sent;
  const std::size_t bytes = message.bytes.size();
  const bool fits = bytes <= most_inline;
  Frame frame;
  for (const Stream::Taker& taker : stream.takers) {
    if (taker_over(stream, taker)) continue;
    if (taker.rank == rank_) {
      stream.arrived.push_back(message);
      changed_->notify();
      continue;
    }
    if (frame.head.bytes.empty()) {
      frame.head = encode({.key = stream.key, .count = bytes, .tail = fits ? message.bytes : ByteView()});
      if (!fits) frame.body = {message.bytes, std::make_shared<Counted>(message.hold, stream.under_way, changed_)};
    }
    enqueue_locked(taker.rank, {.frame = frame, .credit = {}}, When::now);
  }
}

void Member::ask_for_room(const std::vector<Stream*>& streams) {
  {
    const std::lock_guard lock(mutex_);
    for (Stream* const stream : streams) {
      if (std::exchange(stream->said_to_wait, true)) continue;
      for (const Stream::Taker& taker : stream->takers) {
        if (!taker_over(*stream, taker)) tell_locked(taker.rank, {.kind = Head::Kind::waiting, .key = stream->key});
      }
    }
  }
  flush();
}

// ---- taking

Received Member::try_receive(Group& group, Stream& stream) {
  expect_usable();
  Arrived message;
  {
    const std::lock_guard lock(mutex_);
    look_locked(group);
    group.check_aborted();
    if (stream.arrived.empty()) {
      if (!stream.taking || sender_over(stream)) return {.message = {}, .ended = true};
      group.check();
      return {};
    }
    message = std::move(stream.arrived.front());
    stream.arrived.pop_front();
    ++stream.taken;
    if (Stream::Taker* const mine = stream.taker(rank_)) {
      mine->taken = stream.taken;
      message.hold = std::make_shared<Counted>(std::move(message.hold), stream.leased_here, changed_);
      changed_->notify();
    }
    tell_taken_locked(stream);
  }
  flush();
  return {.message = Lease{message.bytes, std::move(message.hold)}};
}

std::vector<Engine::Holder> Member::holders(Group& group, Stream& stream) {
  expect_usable();
  const std::lock_guard lock(mutex_);
  check_locked(group);
  std::vector<Engine::Holder> found;
  for (const Stream::Taker& taker : stream.takers) {
    const Engine::Holder holder{.rank = taker.rank,
                                .not_received = taker_over(stream, taker) ? 0 : stream.not_received(taker),
                                .leased = taker.rank == rank_ ? stream.leased_here->load() : 0};
    if (holder.not_received + holder.leased > 0) found.push_back(holder);
  }
  return found;
}

std::optional<Block> Member::try_allocate(Group& group, std::size_t bytes) {
  check(group);
  return memory_->try_allocate(bytes);
}

// ---- opening and closing

std::shared_ptr<Stream> Member::open(Group& group, std::uint64_t key, Stream::Terms terms) {
  expect_usable();
  const std::lock_guard lock(mutex_);
  check_locked(group);
  auto stream = stream_of_locked(key);
  stream->open(std::move(terms), rank_);
  if (stream->heard_from >= 0 && (stream->heard_from != stream->terms.from || !stream->takes)) {
    end_locked({.kind = ErrorKind::corrupt_message, .rank = stream->heard_from, .text = another_ranks_channel});
    stream->arrived.clear();
  }
  return stream;
}

void Member::close_sender(Stream& stream) noexcept {
  if (!usable()) return;
  {
    const std::lock_guard lock(mutex_);
    close_sender_locked(stream);
    forget_over_locked();
  }
  flush();
}

void Member::close_sender_locked(Stream& stream) {
  if (!stream.sending) return;
  stream.sending = false;
  const Head closed{.kind = Head::Kind::sender_closed, .key = stream.key};
  for (const Stream::Taker& taker : stream.takers) {
    if (taker.rank == rank_) stream.sender_closed = true;
    else if (!taker.closed) tell_locked(taker.rank, closed, When::late);
  }
  changed_->notify();
}

void Member::close_taker(Stream& stream) noexcept {
  if (!usable()) return;
  {
    const std::lock_guard lock(mutex_);
    close_taker_locked(stream);
    forget_over_locked();
  }
  flush();
}

void Member::close_taker_locked(Stream& stream) {
  stream.arrived.clear();
  if (!stream.taking) return;
  stream.taking = false;
  const Head closed{.kind = Head::Kind::taker_closed, .key = stream.key};
  if (Stream::Taker* const mine = stream.taker(rank_)) mine->closed = true;
  else tell_locked(stream.terms.from, closed, stream.sender_waits ? When::now : When::late);
  changed_->notify();
}

void Member::end_streams_locked(const Group* group) {
  for (const auto& [key, stream] : streams_) {
    if (!stream->opened || (group != nullptr && stream->terms.groups.front() != group->key())) continue;
    close_sender_locked(*stream);
    close_taker_locked(*stream);
  }
  forget_over_locked();
}

bool Member::out_of(const Stream& stream, int rank) const {
  if (rank == rank_) return false;
  return peer(rank).left || attendance_.has_left(stream.terms.groups, rank);
}

bool Member::sender_over(const Stream& stream) const {
  return stream.sender_closed || out_of(stream, stream.terms.from);
}

bool Member::taker_over(const Stream& stream, const Stream::Taker& taker) const {
  return taker.closed || out_of(stream, taker.rank);
}

bool Member::is_over(const Stream& stream) const {
  if (!stream.opened || stream.sending || stream.taking) return false;
  const auto gone = [&](int rank) { return peer(rank).dead || out_of(stream, rank); };
  if (stream.takes && !stream.sends && !stream.sender_closed && !gone(stream.terms.from)) return false;
  return std::all_of(stream.takers.begin(), stream.takers.end(),
                     [&](const Stream::Taker& taker) { return taker.closed || gone(taker.rank); });
}

void Member::forget_over_locked() {
  std::erase_if(streams_, [&](const auto& entry) { return is_over(*entry.second); });
}

}  // namespace levada::p2p
