#include "levada/engine/inproc/group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/engine/ranks.h"

namespace levada::inproc {

Group::Group(std::vector<std::shared_ptr<EventCount>> events, std::shared_ptr<Group> parent, std::vector<int> ranks)
    : parent_(std::move(parent)), ranks_(std::move(ranks)) {
  for (auto& changed : events)
    members_.push_back({.changed = std::move(changed), .status = {}, .opened = {}, .entered = {}});
}

// ---- subgroups

std::shared_ptr<Group> Group::subgroup(int rank, std::span<const int> ranks, std::string_view name) {
  const std::lock_guard lock(mutex_);
  check_locked();
  static_cast<void>(check_subgroup(rank, size(), ranks));
  std::vector<int> members(ranks.begin(), ranks.end());
  const int order = member(rank).entered[{members, std::string(name)}]++;
  const SubgroupKey key(members, name, order);
  Expected& expected = expected_[key];
  if (!expected.group) {
    expected.group = make_subgroup(members);
    std::copy_if(members.begin(), members.end(), std::back_inserter(expected.missing),
                 [&](int r) { return member(r).presence == Presence::here; });
  }
  std::shared_ptr<Group> group = expected.group;
  std::erase(expected.missing, rank);
  if (expected.missing.empty()) expected_.erase(key);
  return group;
}

std::shared_ptr<Group> Group::make_subgroup(const std::vector<int>& ranks) {
  std::vector<std::shared_ptr<EventCount>> events;
  for (const int rank : ranks) events.push_back(member(rank).changed);
  auto group = std::make_shared<Group>(std::move(events), shared_from_this(), ranks);
  for (std::size_t i = 0; i < ranks.size(); ++i) group->members_[i].presence = member(ranks[i]).presence;
  std::erase_if(children_, [](const std::weak_ptr<Group>& child) { return child.expired(); });
  children_.push_back(group);
  return group;
}

std::vector<std::shared_ptr<Group>> Group::children() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Group>> alive;
  for (const auto& child : children_) {
    if (auto group = child.lock()) alive.push_back(std::move(group));
  }
  return alive;
}

int Group::rank_of(int parent_rank) const {
  return rank_in(ranks_, parent_rank);
}

// ---- streams

std::shared_ptr<Stream> Group::open(int rank, int from, std::span<const int> to, int window) {
  const std::lock_guard lock(mutex_);
  check_locked();
  check_channel(rank, size(), from, to, window);
  std::vector<int> takers(to.begin(), to.end());
  std::sort(takers.begin(), takers.end());
  const int order = member(rank).opened[{from, takers}]++;
  auto& stream = streams_[{from, takers, order}];
  if (!stream) {
    stream = std::make_shared<Stream>(from, takers, window);
    if (member(from).presence == Presence::left) stream->close_sender();
    for (const int taker : takers) {
      if (member(taker).presence == Presence::left) stream->close_taker(stream->taker(taker));
    }
  }
  if (stream->window() != window) {
    throw InvalidArgument(
        fmt::format("rank {} opens the channel from rank {} to ranks {} with a window of {}, another "
                    "member did with {}",
                    rank, from, fmt::join(takers, ", "), window, stream->window()));
  }
  return stream;
}

bool Group::try_publish(int rank, Stream& stream, Block& block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  check_locked();
  if (!stream.sender_open()) throw InvalidArgument(fmt::format("rank {} publishes on a channel it has closed", rank));
  if (!stream.has_room()) return false;
  const ByteView view = block.memory().first(bytes);
  stream.publish({.bytes = view, .hold = std::make_shared<const Block>(std::move(block))});
  for (const int taker : stream.takers()) member(taker).changed->notify();
  return true;
}

Group::Taken Group::try_receive(int rank, Stream& stream) {
  const std::lock_guard lock(mutex_);
  check_aborted();
  const int taker = stream.taker(rank);
  if (!stream.has_message(taker)) {
    if (!stream.sender_open() || !stream.is_open(taker)) return {.message = {}, .leased = {}, .ended = true};
    check_locked();
    return {};
  }
  const bool had_room = stream.has_room();
  Message message = stream.take(taker);
  if (!had_room && stream.has_room()) member(stream.from()).changed->notify();
  return {.message = std::move(message), .leased = stream.leased(taker)};
}

std::vector<Engine::Holder> Group::holders(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  check_locked();
  return stream.holders();
}

void Group::close_sender(Stream& stream) {
  const std::lock_guard lock(mutex_);
  close_sender_locked(stream);
  forget_finished();
}

void Group::close_taker(Stream& stream, int rank) {
  const std::lock_guard lock(mutex_);
  close_taker_locked(stream, rank);
  forget_finished();
}

void Group::close_sender_locked(Stream& stream) {
  stream.close_sender();
  for (const int taker : stream.takers()) member(taker).changed->notify();
}

void Group::close_taker_locked(Stream& stream, int rank) {
  stream.close_taker(stream.taker(rank));
  member(stream.from()).changed->notify();
}

void Group::forget_finished() {
  std::erase_if(streams_, [](const auto& entry) { return entry.second->is_over(); });
}

// ---- what every call looks at

void Group::check_locked() const {
  if (cause_) cause_->raise();
}

void Group::check_aborted() const {
  if (aborted_) check_locked();
}

void Group::check() {
  const std::lock_guard lock(mutex_);
  check_locked();
}

bool Group::ready(int rank, const Wanted& wanted) {
  const std::lock_guard lock(mutex_);
  check_aborted();
  for (const Stream* stream : wanted.take) {
    const int taker = stream->taker(rank);
    if (stream->has_message(taker) || !stream->sender_open() || !stream->is_open(taker)) return true;
  }
  check_locked();
  return std::any_of(wanted.publish.begin(), wanted.publish.end(),
                     [](const Stream* stream) { return stream->has_room() || !stream->sender_open(); });
}

void Group::post(int rank, const Status& status) {
  const std::lock_guard lock(mutex_);
  check_locked();
  member(rank).status = status;
}

Status Group::status(int rank) {
  check_ranks(std::span(&rank, 1), size(), "the status");
  const std::lock_guard lock(mutex_);
  check_locked();
  return member(rank).status;
}

// ---- ways to end

void Group::notify_all() {
  for (const Member& m : members_) m.changed->notify();
}

void Group::abort(int rank, std::string_view reason) {
  constexpr std::size_t longest = 200;
  abort_with(fmt::format("rank {} aborted: {}", rank, cut_text(reason, longest)));
}

void Group::abort_with(const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    if (!cause_) cause_ = Cause{.message = message};
    notify_all();
  }
  for (const auto& child : children()) child->abort_with(message);
}

void Group::leave(int rank) {
  std::vector<std::pair<std::shared_ptr<Group>, int>> not_entered;
  {
    const std::lock_guard lock(mutex_);
    if (member(rank).presence != Presence::here) return;
    member(rank).presence = Presence::left;
    for (const auto& [key, stream] : streams_) {
      if (stream->from() == rank) close_sender_locked(*stream);
      if (stream->taker(rank) >= 0) close_taker_locked(*stream, rank);
    }
    forget_finished();
    for (auto& [key, expected] : expected_) {
      if (std::erase(expected.missing, rank) > 0)
        not_entered.emplace_back(expected.group, expected.group->rank_of(rank));
    }
    std::erase_if(expected_, [](const auto& entry) { return entry.second.missing.empty(); });
  }
  for (const auto& [group, its_rank] : not_entered) group->leave(its_rank);
}

void Group::lose(int rank) {
  if (parent_) parent_->lose(ranks_[static_cast<std::size_t>(rank)]);
  else lose_below(rank);
}

void Group::lose_below(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (member(rank).presence == Presence::left) return;
    member(rank).presence = Presence::lost;
    if (!cause_) {
      cause_ = Cause{.kind = ErrorKind::peer_lost,
                     .lost = rank,
                     .message = fmt::format("rank {} ended without leaving the group", rank)};
    }
    for (auto& [key, expected] : expected_) std::erase(expected.missing, rank);
    std::erase_if(expected_, [](const auto& entry) { return entry.second.missing.empty(); });
    notify_all();
  }
  for (const auto& child : children()) {
    if (const int its_rank = child->rank_of(rank); its_rank >= 0) child->lose_below(its_rank);
  }
}

}  // namespace levada::inproc
