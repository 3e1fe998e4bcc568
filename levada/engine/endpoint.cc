#include "levada/engine/endpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {
namespace {

ChannelState& state_of(Channel& channel) {
  return static_cast<EndpointChannel&>(channel).state();
}

}  // namespace

Endpoint::Endpoint(Identity identity, std::shared_ptr<EventCount> changed, std::shared_ptr<BlockPool> pool,
                   Traits traits)
    : identity_(std::move(identity)),
      changed_(std::move(changed)),
      pool_(std::move(pool)),
      table_(identity_.rank, size(), traits.channels),
      heartbeat_(traits.heartbeat) {}

void Endpoint::expect_usable() const {
  if (is_usable()) return;
  throw EngineError(fmt::format(
      "this {} engine belongs to the process that this one was forked from; create a new one in the child, or exec",
      identity_.name));
}

// ---- checks in every call

void Endpoint::drain_and_refresh(Group& group) {
  drain();
  flush_queued();
  refresh(group);
}

void Endpoint::refresh(Group& group) {
  if (group.cause) return table_.refresh(group);
  table_.refresh(group);
  const bool is_loss = group.cause && group.cause->kind == ErrorKind::peer_lost && group.cause->rank >= 0;
  if (is_loss) group.cause->step = last_status(group, group.cause->rank).step;
}

void Endpoint::check_locked(Group& group) {
  drain_and_refresh(group);
  group.check();
}

void Endpoint::flush_queued() {
  while (table_.has_notices() || table_.has_endings() || table_.has_dropped()) {
    for (const AddressedNotice& addressed : table_.take_notices()) carry(addressed);
    for (const Ending& ending : table_.take_endings()) {
      if (const Group* const group = table_.group(ending.group)) carry(*group, ending);
    }
    for (const auto& [from, arrival] : table_.take_dropped()) drop(from, arrival);
  }
}

void Endpoint::check(Group& group) {
  expect_usable();
  const Lock lock(*this);
  check_locked(group);
}

std::optional<Cause> Endpoint::cause(Group& group) {
  expect_usable();
  const Lock lock(*this);
  drain_and_refresh(group);
  return group.cause;
}

// ---- groups

void Endpoint::enter(Group& group) {
  expect_usable();
  const Lock lock(*this);
  drain();
  flush_queued();
  table_.enter(group);
}

void Endpoint::leave(Group& group) noexcept {
  if (!is_usable()) return;
  const Lock lock(*this);
  drain();  // so that messages that no rank receives are given back
  flush_queued();
  forget_status(group);
  if (table_.group(group.key()) == &group && table_.num_groups() == 1) table_.depart();
  else table_.leave(group);
  flush_queued();
}

void Endpoint::abort(Group& group, std::string_view reason, ErrorKind kind) noexcept {
  if (!is_usable()) return;
  const Lock lock(*this);
  drain();
  flush_queued();
  table_.refresh(group);
  if (group.aborted) return;  // all members know already, and a medium has room for few aborts
  const Ending ending{
      .kind = kind, .group = group.key(), .rank = rank(), .detail = std::string(cut_text(reason, max_detail_bytes))};
  table_.end(ending);
  carry(group, ending);
  notify();
}

// ---- channels

std::shared_ptr<ChannelState> Endpoint::open(Group& group, std::uint64_t key, int from, std::span<const int> to,
                                             int window, ChannelOptions options) {
  expect_usable();
  const Lock lock(*this);
  check_locked(group);
  if (options.landing) has_landings_ = true;
  auto channel = table_.open(group, key, from, to, window);
  channel->landing = std::move(options.landing);
  channel->must_be_closed = options.must_be_closed;
  flush_queued();
  return channel;
}

void Endpoint::close(ChannelState& channel, End end) noexcept {
  if (!is_usable()) return;
  const Lock lock(*this);
  const bool is_open = end == End::sending ? channel.is_sending : channel.is_receiving;
  if (!is_open) return;
  drain();  // so that messages that no rank receives are given back
  table_.close(channel, end);
  flush_queued();
  notify(&channel);
}

void Endpoint::release(ChannelState& channel) noexcept {
  if (!is_usable()) return;
  const Lock lock(*this);
  if (!channel.is_sending && !channel.is_receiving) return;
  drain();  // so that messages that no rank receives are given back
  table_.release(channel);
  flush_queued();
  notify(&channel);
}

std::optional<std::uint64_t> position_of(ByteView memory, ByteView bytes) {
  const std::uint64_t position =
      reinterpret_cast<std::uintptr_t>(bytes.data()) - reinterpret_cast<std::uintptr_t>(memory.data());
  return view_of(memory, position, bytes.size()) ? std::optional(position) : std::nullopt;
}

bool Endpoint::keep_pages(ByteView bytes) const {
  if (!levada::position_of(pool_->memory(), bytes)) return false;
  pool_->keep_pages();
  return true;
}

std::optional<ByteView> view_of(ByteView memory, std::uint64_t position, std::uint64_t bytes) {
  if (position > memory.size() || bytes > memory.size() - position) return std::nullopt;
  return memory.subspan(position, bytes);
}

bool Endpoint::try_send(Group& group, ChannelState& channel, Block* block, ByteView bytes,
                        std::shared_ptr<const void> hold) {
  expect_usable();
  const Lock lock(*this);
  check_locked(group);
  if (block != nullptr && block->home() != pool_) {
    throw InvalidArgument("the block to publish was not allocated from this engine; use try_allocate()");
  }
  if (!channel.is_sending) {
    throw InvalidArgument(fmt::format("rank {} publishes on a channel that it has closed", group.rank));
  }
  if (block == nullptr) {
    reclaim();  // so that a block that has come back can be sent again
    check_forwarded(bytes);
  }
  if (!has_room(channel)) return false;
  table_.announce(channel);
  flush_queued();
  send(channel, {bytes, block != nullptr ? std::move(*block) : Block(), std::move(hold)});
  table_.count_sent(channel);
  return true;
}

bool Endpoint::try_publish(Group& group, ChannelState& channel, Block& block, std::size_t bytes) {
  return try_send(group, channel, &block, block.memory().first(bytes), nullptr);
}

bool Endpoint::try_publish(Group& group, ChannelState& channel, const Lease& lease) {
  return try_send(group, channel, nullptr, lease.bytes, lease.hold);
}

Received Endpoint::try_receive(Group& group, ChannelState& channel) {
  expect_usable();
  const Lock lock(*this);
  drain_and_refresh(group);
  group.check_aborted();
  if (!channel.arrived.empty()) {
    Received received = lease(channel, table_.receive(channel));
    flush_queued();
    if (received.message) return received;
    refresh(group);
  } else if (table_.has_ended(channel)) {
    return {.ended = true};
  }
  group.check();
  return {};
}

bool Endpoint::is_abandoned(ChannelState& channel) {
  expect_usable();
  const Lock lock(*this);
  drain();
  flush_queued();
  return table_.is_abandoned(channel);
}

std::vector<Engine::Holder> Endpoint::holders(Group& group, ChannelState& channel) {
  expect_usable();
  const Lock lock(*this);
  check_locked(group);
  collect_receipts(channel);
  std::vector<Engine::Holder> found;
  for (const auto& receiver : channel.receivers) {
    const bool is_over = table_.receiver_is_over(channel, receiver);
    const Engine::Holder holder{.rank = group.rank_of(receiver.rank),
                                .not_received = is_over ? 0 : channel.not_received(receiver),
                                .leased = num_leased(channel, receiver)};
    if (holder.not_received + holder.leased > 0) found.push_back(holder);
  }
  return found;
}

// ---- memory

std::optional<Block> Endpoint::try_allocate(Group& group, std::size_t bytes, BlockUse use) {
  expect_usable();
  {
    const Lock lock(*this);
    check_locked(group);
    reclaim();
  }
  return pool_->try_allocate(bytes, use);
}

std::uint64_t Endpoint::memory_in_use() {
  expect_usable();
  const Lock lock(*this);
  drain();
  reclaim();
  return pool_->in_use();
}

std::uint64_t Endpoint::trim() {
  expect_usable();
  {
    const Lock lock(*this);
    drain();
    reclaim();
  }
  return pool_->trim();
}

// ---- waiting

bool Endpoint::is_ready(Group& group, const WaitFor& wanted) {
  {
    const Lock lock(*this);
    drain_and_refresh(group);
    group.check_aborted();
    for (Channel* const channel : wanted.receive) {
      const ChannelState& state = state_of(*channel);
      if (!state.arrived.empty() || table_.has_ended(state)) return true;
    }
    group.check();
    for (Channel* const channel : wanted.publish) {
      ChannelState& state = state_of(*channel);
      if (!state.is_sending || has_room(state)) return true;
    }
    if (wanted.allocate != 0) reclaim();
  }
  return wanted.allocate != 0 && pool_->may_allocate(wanted.allocate);
}

Woken Endpoint::wait(Group& group, const WaitFor& wanted, Deadline deadline) {
  expect_usable();
  if (wanted.allocate > pool_->max_block()) static_cast<void>(pool_->try_allocate(wanted.allocate));  // throws
  const auto is_stopped = [&] { return wanted.stop != nullptr && wanted.stop->load(); };
  if (is_ready(group, wanted)) return Woken::ready;
  if (is_stopped()) return Woken::stopped;
  if (deadline.expired()) return Woken::timeout;

  struct SleepGuard {
    Endpoint& endpoint;
    Sleep sleep;
    ~SleepGuard() { endpoint.end_sleep(sleep); }
  };
  SleepGuard sleeping{*this, begin_sleep(wanted)};
  while (true) {
    observe(sleeping.sleep);
    if (is_ready(group, wanted)) return Woken::ready;
    if (is_stopped()) return Woken::stopped;
    if (deadline.expired()) return Woken::timeout;
    Duration longest = std::min(heartbeat_, wanted.poll_before_sleep(deadline));
    if (wanted.allocate != 0) longest = std::min(longest, pool_->retry_after().value_or(longest));
    const auto until = longest == Duration::max() ? Deadline::never() : Deadline::after(longest);
    if (!sleep(sleeping.sleep, until)) after_quiet(group);
  }
}

void Endpoint::ask_statuses(Group& group) {
  expect_usable();
  after_quiet(group);
}

void Endpoint::wake() {
  expect_usable();
  notify();
}

void Endpoint::notify(const ChannelState* /*channel*/) noexcept {
  changed_->notify();
}

void Endpoint::on_change(std::function<void()> hook) {
  expect_usable();
  if (!changed_) {
    throw Unsupported(fmt::format("the {} engine sees no message unless a thread waits", identity_.name));
  }
  changed_->set_hook(std::move(hook));
}

void Endpoint::observe(Sleep& sleep) {
  sleep.seen = changed_->count();
}

bool Endpoint::sleep(const Sleep& sleep, Deadline deadline) {
  return changed_->wait(sleep.seen, deadline);
}

}  // namespace levada
