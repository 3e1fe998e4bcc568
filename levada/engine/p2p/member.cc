#include "levada/engine/p2p/member.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada::p2p {
namespace {

/// How often a waiting rank looks what has become of the others' boards: the fewer ask, the more often each may.
Duration board_age(int ranks) {
  return std::chrono::milliseconds(100 + 10 * ranks);
}

/// How long what is not urgent waits for company.
constexpr auto late_delay = std::chrono::milliseconds(20);

}  // namespace

Member::Member(std::shared_ptr<Wire> wire, const Options& options)
    : wire_(std::move(wire)),
      rank_(wire_->rank()),
      size_(static_cast<int>(wire_->host_of().size())),
      process_(::getpid()),
      changed_(std::make_shared<EventCount>()),
      memory_(std::make_shared<BlockPool>(options.memory_bytes, changed_)),
      arrivals_(std::make_shared<BlockPool>(options.memory_bytes, changed_)),
      peers_(static_cast<std::size_t>(size_)) {}

bool Member::usable() const {
  return ::getpid() == process_;
}

void Member::expect_usable() const {
  if (usable()) return;
  throw EngineError("this engine belongs to the process that this one was forked from; join anew in the child");
}

// ---- what every call looks at

void Member::look_locked(Group& group) {
  for (; group.seen < ends_.size(); ++group.seen) group.apply(ends_[group.seen]);
}

void Member::check_locked(Group& group) {
  look_locked(group);
  group.check();
}

void Member::check(Group& group) {
  expect_usable();
  const std::lock_guard lock(mutex_);
  check_locked(group);
}

// ---- sending

void Member::tell_locked(int to, const Head& head, When when) {
  enqueue_locked(to, {.frame = {.head = encode(head), .body = {}}, .credit = {}}, when);
}

void Member::tell_taken_locked(Stream& stream) {
  const int to = stream.terms.from;
  const auto when = stream.sender_waits ? When::now : When::late;
  const Head head{.kind = Head::Kind::taken, .key = stream.key, .count = stream.taken};
  if (auto& box = peer(to).outbox; !box.empty() && box.back().credit == stream.key) box.pop_back();  // as it says less
  enqueue_locked(to, {.frame = {.head = encode(head), .body = {}}, .credit = stream.key}, when);
}

void Member::enqueue_locked(int to, Outgoing outgoing, When when) {
  if (to == rank_ || peer(to).told || peer(to).is_out()) return;
  peer(to).outbox.push_back(std::move(outgoing));
  if (when == When::now) return make_due_locked(to);
  if (std::exchange(has_late_, true)) return;
  late_added_.notify();
}

void Member::make_due_locked(int to) {
  if (!std::exchange(peer(to).due, true)) due_.push_back(to);
}

void Member::say_goodbye_locked(int to) {
  if (to == rank_ || peer(to).told || peer(to).dead) return;
  peer(to).told = true;
  Frame frame{.head = encode({.kind = Head::Kind::goodbye}), .body = {}, .last = true};
  peer(to).outbox.push_back({.frame = std::move(frame), .credit = {}});
  make_due_locked(to);
}

Frame Member::next_frame_locked(Peer& peer) {
  std::vector<Lease> heads;
  std::size_t bytes = 0;
  Frame frame;
  while (!peer.outbox.empty() && frame.body.bytes.empty()) {
    Frame& next = peer.outbox.front().frame;
    bytes += next.head.bytes.size();
    if (bytes > most_head) break;
    heads.push_back(std::move(next.head));
    frame.body = std::move(next.body);
    frame.last = next.last;
    peer.outbox.pop_front();
  }
  frame.head = join(heads);
  return frame;
}

void Member::flush() noexcept {
  std::unique_lock lock(mutex_);
  if (flushing_) return;
  flushing_ = true;
  while (!due_.empty()) {
    const int to = due_.front();
    due_.pop_front();
    peer(to).due = false;
    std::deque<Outgoing> unsent;
    if (peer(to).dead) unsent.swap(peer(to).outbox);
    Frame next;
    if (!peer(to).outbox.empty()) next = next_frame_locked(peer(to));
    if (!peer(to).outbox.empty()) make_due_locked(to);
    lock.unlock();
    try {
      if (!next.head.bytes.empty()) wire_->send(to, std::move(next));
    } catch (const std::exception& error) {
      const std::lock_guard again(mutex_);
      lose_locked(to, error.what());
      late_added_.notify();
    }
    next = {};  // whose blocks, as those of what is not sent, may notify waiters, and are not to be held meanwhile
    unsent.clear();
    lock.lock();
  }
  flushing_ = false;
}

void Member::send_late() {
  for (;;) {
    const std::uint64_t seen = late_added_.count();
    if (all_are_out()) return;
    bool has_late = false;
    {
      const std::lock_guard lock(mutex_);
      has_late = std::exchange(has_late_, false);
    }
    if (!has_late) {
      late_added_.wait(seen, Deadline::never());
      continue;
    }
    std::this_thread::sleep_for(late_delay);
    {
      const std::lock_guard lock(mutex_);
      for (int to = 0; to < size_; ++to) {
        if (!peer(to).outbox.empty()) make_due_locked(to);
      }
    }
    flush();
  }
}

// ---- entering, leaving, ending

void Member::enter(Group& group) {
  {
    const std::lock_guard lock(mutex_);
    groups_[group.key()] = &group;
    attendance_.enter_oneself(group.keys);
    const bool whole_wire = group.keys.size() == 1;
    for (const int rank : group.ranks) {
      if (!whole_wire) tell_locked(rank, {.kind = Head::Kind::entered, .key = group.key()}, When::late);
    }
  }
  flush();
}

void Member::leave(Group& group) noexcept {
  if (!usable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_streams_locked(&group);
    const Head left{.kind = Head::Kind::left, .key = group.key()};
    for (const int rank : group.ranks) tell_locked(rank, left, When::late);
    groups_.erase(group.key());
    attendance_.leave_oneself(group.keys, group.ranks.size() - 1);
  }
  flush();
}

void Member::leave_all() noexcept {
  if (!usable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_streams_locked(nullptr);
    for (int rank = 0; rank < size_; ++rank) say_goodbye_locked(rank);
  }
  flush();
}

void Member::end_locked(End end) {
  ends_.push_back(std::move(end));
  changed_->notify();
}

void Member::abort(Group& group, std::string_view reason) noexcept {
  if (!usable()) return;
  reason = cut_text(reason, most_reason);
  {
    const std::lock_guard lock(mutex_);
    const Head head{.kind = Head::Kind::aborted, .key = group.key(), .rank = group.rank, .tail = as_bytes(reason)};
    for (const int rank : group.ranks) tell_locked(rank, head);
    end_locked({.kind = ErrorKind::engine, .group = group.key(), .rank = group.rank, .text = std::string(reason)});
  }
  flush();
}

void Member::lose_locked(int rank, std::string_view why) {
  if (rank == rank_ || peer(rank).is_out()) return;
  peer(rank).dead = true;
  why = cut_text(why, most_reason);
  // Only one rank may have seen it.
  for (int other = 0; other < size_; ++other) {
    tell_locked(other, {.kind = Head::Kind::lost, .rank = rank, .tail = as_bytes(why)});
  }
  end_locked({.kind = ErrorKind::peer_lost, .rank = rank, .text = std::string(why)});
}

void Member::lost(int peer, std::string_view why) {
  if (!usable() || peer < 0 || peer >= size_) return;
  {
    const std::lock_guard lock(mutex_);
    lose_locked(peer, why);
  }
  late_added_.notify();
  flush();
}

bool Member::is_out(int rank) {
  const std::lock_guard lock(mutex_);
  return rank == rank_ || peer(rank).is_out();
}

bool Member::all_are_out() {
  const std::lock_guard lock(mutex_);
  return std::all_of(peers_.begin(), peers_.end(),
                     [&](const Peer& each) { return each.is_out() || &each == &peer(rank_); });
}

// ---- receiving

Block Member::room_for_body(int from, ByteView bytes) {
  try {
    const Head head = decode(bytes, size_).back();
    if (!has_body(head)) return {};
    if (auto block = arrivals_->try_allocate(head.count)) return *std::move(block);
    throw EngineError("no memory is left for what comes");
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!peer(from).is_out()) end_locked({.kind = ErrorKind::corrupt_message, .rank = from, .text = error.what()});
    peer(from).dead = true;
    return {};
  }
}

void Member::deliver(int from, ByteView bytes, Block body) {
  {
    const std::lock_guard lock(mutex_);
    try {
      for (const Head& head : decode(bytes, size_)) {
        if (!peer(from).is_out()) accept_locked(from, head, has_body(head) ? std::exchange(body, {}) : Block());
      }
    } catch (const Error& error) {
      peer(from).dead = true;
      end_locked({.kind = ErrorKind::corrupt_message, .rank = from, .text = error.what()});
    }
  }
  changed_->notify();
  if (all_are_out()) late_added_.notify();
  flush();
}

// ---- waiting

bool Member::satisfied(Group& group, const WaitFor& conditions, const Wanted& streams) {
  const std::lock_guard lock(mutex_);
  look_locked(group);
  group.check_aborted();
  for (const Stream* const stream : streams.take) {
    if (!stream->arrived.empty() || !stream->taking || sender_over(*stream)) return true;
  }
  group.check();
  for (const Stream* const stream : streams.publish) {
    if (!stream->sending || has_room(*stream)) return true;
  }
  return conditions.allocate != 0 && memory_->may_allocate(conditions.allocate);
}

Woken Member::wait(Group& group, const WaitFor& conditions, const Wanted& streams, Deadline deadline) {
  expect_usable();
  while (true) {
    const std::uint64_t seen = changed_->count();
    if (satisfied(group, conditions, streams)) return Woken::ready;
    if (conditions.stop != nullptr && conditions.stop->load()) return Woken::stopped;
    if (deadline.expired()) {
      ask_board(group);
      return Woken::timeout;
    }
    ask_for_room(streams.publish);
    const Deadline slice = Deadline::after(std::min(conditions.poll_before_sleep(deadline), board_age(size_)));
    if (!changed_->wait(seen, slice)) ask_board(group);
  }
}

void Member::wake() {
  expect_usable();
  changed_->notify();
}

// ---- the board

void Member::ask_locked(Group& group, int rank) {
  Group::StatusSlot& slot = group.slot(rank);
  if (rank == group.rank || std::exchange(slot.asked, true)) return;
  tell_locked(group.outer(rank), {.kind = Head::Kind::ask_status, .key = group.key()});
}

void Member::ask_board(Group& group) {
  {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (now - board_asked_ < board_age(size_)) return;
    board_asked_ = now;
    for (int rank = 0; rank < static_cast<int>(group.ranks.size()); ++rank) ask_locked(group, rank);
  }
  flush();
}

void Member::answer_locked(int from, std::uint64_t key) {
  const auto group = groups_.find(key);
  const Status mine = group == groups_.end() ? Status() : group->second->slot(group->second->rank).status;
  tell_locked(from, {.kind = Head::Kind::status, .key = key, .tail = std::as_bytes(std::span(&mine, 1))});
}

void Member::hear_status_locked(int from, const Head& head) {
  const auto found = groups_.find(head.key);
  if (found == groups_.end()) return;
  Group& group = *found->second;
  const int rank = group.rank_of(from);
  if (rank < 0 || !std::exchange(group.slot(rank).asked, false)) return;
  std::memcpy(&group.slot(rank).status, head.tail.data(), sizeof(Status));  // not payload: the board
}

void Member::post(Group& group, const Status& status) {
  expect_usable();
  const std::lock_guard lock(mutex_);
  check_locked(group);
  group.slot(group.rank).status = status;
}

Status Member::status(Group& group, int rank) {
  expect_usable();
  Status known;
  {
    const std::lock_guard lock(mutex_);
    check_locked(group);
    known = group.slot(rank).status;
    ask_locked(group, rank);
  }
  flush();
  return known;
}

}  // namespace levada::p2p
