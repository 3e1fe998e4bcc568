// How messages cross: rings, and the streams into which what arrives is sorted.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "levada/engine/shm/member.h"

namespace levada::shm {
namespace {

/// To look for written pages takes a few system calls; less than this is copied as fast.
constexpr std::size_t least_private = std::size_t{256} << 10;

/// What is wrong with a stream where more waits to be taken than its window; its sender sees a message as taken only
/// once it is gone from there. Empty if nothing is.
std::string beyond_window(const Stream& stream) {
  if (!stream.opened || stream.arrived.size() <= static_cast<std::size_t>(stream.window)) return {};
  return fmt::format("more messages than a window of {}, which is to be the same for all", stream.window);
}

}  // namespace

/// What a lease holds on to.
class Member::Hold {
 public:
  Hold(std::shared_ptr<Member> member, int from, const Descriptor& descriptor)
      : member_(std::move(member)), from_(from), slot_(descriptor.slot), generation_(descriptor.generation) {}
  ~Hold() {
    if (!member_->usable()) return;
    const Control& control = member_->control_;
    control.returns(from_, slot_, member_->rank_).give_back(generation_);
    if (!control.all_beyond(Return::taken, from_, slot_, generation_)) return;
    member_->wake_if_waiting_for_space(from_, memory_topic);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  std::shared_ptr<Member> member_;
  int from_;
  std::uint32_t slot_;
  std::uint32_t generation_;
};

/// What a lease that has a private view holds on to.
class Member::PrivateHold {
 public:
  PrivateHold(std::shared_ptr<Member> member, std::shared_ptr<const void> hold, PrivateViews::Use use)
      : member_(std::move(member)), hold_(std::move(hold)), use_(std::move(use)) {}
  ~PrivateHold() {
    // Before the block goes back: then it may come again.
    if (member_->usable()) member_->views_->close(std::move(use_));
  }
  PrivateHold(const PrivateHold&) = delete;
  PrivateHold& operator=(const PrivateHold&) = delete;

 private:
  std::shared_ptr<Member> member_;
  std::shared_ptr<const void> hold_;
  PrivateViews::Use use_;
};

// ---- arriving

void Member::drain() {
  auto& pending = control_.page(rank_).pending;
  const int words = (size_ + 63) / 64;
  for (int w = 0; w < words; ++w) {
    auto& word = pending[static_cast<std::size_t>(w)];
    if (word.load(std::memory_order_seq_cst) == 0) continue;
    std::uint64_t bits = word.exchange(0, std::memory_order_seq_cst);
    for (; bits != 0; bits &= bits - 1) {
      const int from = 64 * w + std::countr_zero(bits);
      if (from < size_) drain_from(from);
    }
  }
}

void Member::drain_from(int from) {
  const auto index = static_cast<std::size_t>(from);
  if (!peers_[index].corrupt.empty()) return;
  Ring ring = control_.ring(from, rank_);
  std::uint64_t& received = received_[index];
  const auto waiting = ring.waiting(received);
  if (!waiting) return mark_corrupt(from, "its ring counts more descriptors than the ring has");
  if (*waiting == 0) return;
  for (const std::uint64_t end = received + *waiting; received != end; ++received) {
    if (std::string wrong = accept(from, ring.at(received)); !wrong.empty()) {
      mark_corrupt(from, std::move(wrong));
      break;
    }
  }
  ring.pop_to(received);
  if (ring.may_have_been_full(received, *waiting)) wake_if_waiting_for_space(from, all_topics);
}

void Member::mark_corrupt(int from, std::string what) {
  peers_[static_cast<std::size_t>(from)].corrupt =
      fmt::format("rank {} of this host sent what no rank sends: {}; its memory may have been overwritten", from, what);
  ++news_seen_;
}

std::string Member::accept(int from, const Descriptor& descriptor) {
  switch (descriptor.kind) {
    case Descriptor::Kind::message: {
      const auto end = checked_add(descriptor.offset, descriptor.bytes);
      const std::uint64_t size = memory_.data[static_cast<std::size_t>(from)]->size();
      const bool is_a_block = descriptor.offset % page_bytes == 0 && descriptor.slot < Control::slots(size_);
      if (descriptor.bytes == 0 || !end || *end > size || !is_a_block) {
        return fmt::format("a message of {} bytes at {} in slot {}, with {} bytes of memory", descriptor.bytes,
                           descriptor.offset, descriptor.slot, size);
      }
      return accept_message(*stream_of(descriptor.key), from, descriptor);
    }
    case Descriptor::Kind::sender_closed: {
      const auto stream = stream_of(descriptor.key);
      if (stream->opened && (stream->from != from || !stream->takes)) return "the end of another rank's channel";
      stream->sender_closed = true;
      forget_if_over(*stream);
      return {};
    }
    case Descriptor::Kind::taker_closed: {
      const auto stream = stream_of(descriptor.key);
      if (stream->opened && !stream->sends) return "a taker's close of a channel that this rank does not send on";
      if (!stream->taker_closed(from)) stream->closed_takers.push_back(from);
      forget_if_over(*stream);
      return {};
    }
    case Descriptor::Kind::group_entered: attendance_.enter(descriptor.key, from); return {};
    case Descriptor::Kind::group_left:
      attendance_.leave(descriptor.key, from);
      std::erase_if(streams_, [&](const auto& entry) { return is_over(*entry.second); });
      attendance_.forget_if_over(descriptor.key);
      return {};
  }
  return fmt::format("a descriptor of kind {}", static_cast<unsigned>(descriptor.kind));
}

std::string Member::accept_message(Stream& stream, int from, const Descriptor& descriptor) {
  const bool foreign =
      stream.opened ? stream.from != from || !stream.takes : stream.arrived_from >= 0 && stream.arrived_from != from;
  if (foreign) return "a message on a channel of another rank";
  stream.arrived_from = from;
  if (stream.opened && !stream.taking) {
    drop(from, descriptor);
    return {};
  }
  stream.arrived.push(descriptor);
  return beyond_window(stream);
}

void Member::drop(int from, const Descriptor& descriptor) {
  control_.returns(from, descriptor.slot, rank_).drop(descriptor.generation);
  wake_if_waiting_for_space(from, all_topics);
}

std::shared_ptr<Stream> Member::stream_of(std::uint64_t key) {
  auto& stream = streams_[key];
  if (!stream) stream = std::make_shared<Stream>(key);
  return stream;
}

// ---- sending

void Member::push(int to, const Descriptor& descriptor) {
  control_.ring(rank_, to).push(sent_[static_cast<std::size_t>(to)], descriptor);
  auto& pending = control_.page(to).pending[static_cast<std::size_t>(rank_ / 64)];
  pending.fetch_or(std::uint64_t{1} << (rank_ % 64), std::memory_order_seq_cst);
}

void Member::notice(int to, const Descriptor& descriptor) {
  const auto index = static_cast<std::size_t>(to);
  if (peers_[index].left || peers_[index].gone) return;
  const auto room = control_.ring(rank_, to).room(sent_[index]);
  if (!room) return;
  if (*room == 0 || !unsent_[index].empty()) {
    unsent_[index].push_back(descriptor);
    has_unsent_ = true;
    return;
  }
  push(to, descriptor);
  control_.ring_doorbell(to);
}

void Member::flush_notices() {
  has_unsent_ = false;
  for (int to = 0; to < size_; ++to) {
    const std::vector<Descriptor> waiting = std::exchange(unsent_[static_cast<std::size_t>(to)], {});
    for (const Descriptor& descriptor : waiting) notice(to, descriptor);
  }
}

bool Member::taken_by_all(const Stream& stream, const Stream::Sent& sent) const {
  return std::all_of(stream.to.begin(), stream.to.end(), [&](int taker) {
    return control_.returns(rank_, sent.slot, taker).step(sent.generation) != Return::published ||
           taker_over(stream, taker);
  });
}

void Member::settle(Stream& stream) {
  while (!stream.outstanding.empty() && taken_by_all(stream, stream.outstanding.front())) stream.outstanding.pop();
}

bool Member::has_room(Stream& stream) {
  settle(stream);
  if (stream.outstanding.size() >= static_cast<std::size_t>(stream.window)) return false;
  for (const int taker : stream.to) {
    const auto room = control_.ring(rank_, taker).room(sent_[static_cast<std::size_t>(taker)]);
    if (!room) mark_corrupt(taker, "its ring counts more descriptors taken than were sent");
    if (room.value_or(0) <= Ring::reserve && !taker_over(stream, taker)) return false;
  }
  return true;
}

bool Member::try_publish(Group& group, const std::shared_ptr<Stream>& stream, Block& block, std::size_t bytes) {
  expect_usable();
  {
    const std::lock_guard lock(mutex_);
    look(group);
    group.check();
    const std::uint32_t slot = slot_of(block);
    if (!stream->sending) {
      throw InvalidArgument(fmt::format("rank {} publishes on a channel it has closed", group.rank));
    }
    if (!has_room(*stream)) return false;
    Use& use = uses_[slot];
    use.generation = (use.generation + 1) % generations;
    use.stream = stream;
    Descriptor message;
    message.key = stream->key;
    message.offset = arena_.block(slot).offset;
    message.bytes = bytes;
    message.slot = slot;
    message.generation = use.generation & (generations - 1);
    for (const int taker : stream->to) {
      if (taker_over(*stream, taker)) continue;
      control_.returns(rank_, slot, taker).publish(use.generation);
      push(taker, message);
    }
    stream->outstanding.push({slot, use.generation});
    in_flight_.push_back(slot);
    static_cast<void>(block.release());
  }
  for (const int taker : stream->to) control_.ring_doorbell(taker, topic_of(stream->key));
  return true;
}

// ---- taking

Received Member::try_receive(Group& group, Stream& stream) {
  expect_usable();
  Descriptor message;
  {
    const std::lock_guard lock(mutex_);
    look(group);
    group.check_aborted();
    if (stream.arrived.empty()) {
      if (sender_over(stream) || !stream.taking) return {.message = {}, .ended = true};
      group.check();
      return {};
    }
    message = stream.arrived.front();
    stream.arrived.pop();
    if (!control_.returns(stream.from, message.slot, rank_).take(message.generation)) {
      mark_corrupt(stream.from, "a message that is not there");
      look(group);
      group.check();
    }
  }
  if (control_.all_beyond(Return::published, stream.from, message.slot, message.generation)) {
    wake_if_waiting_for_space(stream.from, topic_of(stream.key));
  }
  auto hold = std::make_shared<Hold>(shared_from_this(), stream.from, message);
  const std::byte* from = memory_.data[static_cast<std::size_t>(stream.from)]->data() + message.offset;
  return {.message = Lease{ByteView(from, message.bytes), std::move(hold)}};
}

std::span<std::byte> Member::make_private(const std::shared_ptr<Stream>& stream, Lease& lease) {
  expect_usable();
  const Mapping& data = *memory_.data[static_cast<std::size_t>(stream->from)];
  const std::uint64_t begin =
      reinterpret_cast<std::uintptr_t>(lease.bytes.data()) - reinterpret_cast<std::uintptr_t>(data.data());
  const bool is_shared = begin < data.size();
  const bool is_ours_alone = stream->from == rank_ && stream->to.size() == 1;
  if (!is_shared || is_ours_alone) return {const_cast<std::byte*>(lease.bytes.data()), lease.bytes.size()};
  if (lease.bytes.size() < least_private || stream->writes_much) return {};
  PrivateViews::Use use{stream->from, {begin, align_up(begin + lease.bytes.size(), page_bytes)}, stream};
  const auto view = views_->open(use, data.size());
  if (view.empty()) return {};
  lease.hold = std::make_shared<PrivateHold>(shared_from_this(), std::move(lease.hold), std::move(use));
  lease.bytes = view.first(lease.bytes.size());
  return view.first(lease.bytes.size());
}

// ---- opening and closing

std::shared_ptr<Stream> Member::open(Group& group, std::uint64_t key, int from, std::vector<int> to, int window) {
  expect_usable();
  const std::lock_guard lock(mutex_);
  look(group);
  group.check();
  auto stream = stream_of(key);
  stream->opened = true;
  stream->groups = group.keys;
  stream->from = from;
  stream->to = std::move(to);
  stream->window = window;
  stream->sends = stream->sending = from == rank_;
  stream->takes = stream->taking = std::find(stream->to.begin(), stream->to.end(), rank_) != stream->to.end();
  if (stream->arrived_from >= 0 && stream->arrived_from != from) {
    mark_corrupt(stream->arrived_from, "a message on a channel of another rank");
    stream->arrived = {};
  } else if (std::string wrong = beyond_window(*stream); !wrong.empty()) {
    mark_corrupt(from, std::move(wrong));
  }
  return stream;
}

void Member::close_sender(Stream& stream) noexcept {
  if (!usable()) return;
  const std::lock_guard lock(mutex_);
  close_sender_locked(stream);
}

void Member::close_sender_locked(Stream& stream) noexcept {
  if (!stream.sending) return;
  stream.sending = false;
  Descriptor closed;
  closed.key = stream.key;
  closed.kind = Descriptor::Kind::sender_closed;
  for (const int taker : stream.to) notice(taker, closed);
  forget_if_over(stream);
}

void Member::close_taker(Stream& stream) noexcept {
  if (!usable()) return;
  const std::lock_guard lock(mutex_);
  close_taker_locked(stream);
}

void Member::close_taker_locked(Stream& stream) noexcept {
  if (!stream.taking) return;
  stream.taking = false;
  for (; !stream.arrived.empty(); stream.arrived.pop()) drop(stream.from, stream.arrived.front());
  Descriptor closed;
  closed.key = stream.key;
  closed.kind = Descriptor::Kind::taker_closed;
  notice(stream.from, closed);
  forget_if_over(stream);
}

void Member::end_streams(const Group* group) noexcept {
  std::vector<std::shared_ptr<Stream>> ending;
  for (const auto& [key, stream] : streams_) {
    if (stream->opened && (group == nullptr || stream->groups.front() == group->key())) ending.push_back(stream);
  }
  for (const auto& stream : ending) {
    close_sender_locked(*stream);
    close_taker_locked(*stream);
  }
}

bool Member::out_of(std::span<const std::uint64_t> groups, int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  return peer.left || peer.gone || attendance_.has_left(groups, rank);
}

bool Member::sender_over(const Stream& stream) const {
  if (stream.sender_closed) return true;
  const Peer& peer = peers_[static_cast<std::size_t>(stream.from)];
  return !peer.dead && stream.from != rank_ && out_of(stream.groups, stream.from);
}

bool Member::taker_over(const Stream& stream, int taker) const {
  return stream.taker_closed(taker) || (taker != rank_ && out_of(stream.groups, taker));
}

bool Member::is_over(const Stream& stream) const {
  if (!stream.opened || stream.sending || stream.taking) return false;
  if (stream.takes && !stream.sender_closed && !out_of(stream.groups, stream.from)) return false;
  return !stream.sends || std::all_of(stream.to.begin(), stream.to.end(), [&](int taker) {
    return stream.taker_closed(taker) || out_of(stream.groups, taker);
  });
}

void Member::forget_if_over(Stream& stream) {
  if (is_over(stream)) streams_.erase(stream.key);
}

}  // namespace levada::shm
