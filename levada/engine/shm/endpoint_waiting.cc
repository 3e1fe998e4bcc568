// How a rank's threads sleep and are woken, and the statuses that they post while they wait.
#include <algorithm>

#include "levada/engine/shm/endpoint.h"

namespace levada::shm {

// ---- sleeping and waking

int ShmEndpoint::sole_sender(const WaitFor& wanted) {
  if (wanted.receive.empty() || !wanted.publish.empty() || wanted.allocate != 0) return -1;
  const auto sender = [](Channel* channel) { return static_cast<EndpointChannel*>(channel)->state().spec.from; };
  const int first = sender(wanted.receive.front());
  const bool is_sole = std::all_of(wanted.receive.begin(), wanted.receive.end(),
                                   [&](Channel* channel) { return sender(channel) == first; });
  return is_sole ? first : -1;
}

Doorbell& ShmEndpoint::doorbell_of(const Sleep& sleep) const {
  return sleep.sender < 0 ? page().own : control_.page(sleep.sender).sends;
}

ShmEndpoint::Sleep ShmEndpoint::begin_sleep(const WaitFor& wanted) {
  Sleep sleep{.sender = sole_sender(wanted), .mask = wanted.allocate != 0 ? wake_for_memory : 0};
  for (const auto channels : {wanted.receive, wanted.publish}) {
    for (Channel* const channel : channels) sleep.mask |= wake_for(static_cast<EndpointChannel*>(channel)->state().key);
  }
  if (sleep.mask == 0) sleep.mask = wake_all;
  sleep.wants_space = !wanted.publish.empty() || wanted.allocate != 0;
  count_sleeper(sleep);
  return sleep;
}

void ShmEndpoint::count_sleeper(const Sleep& sleep) noexcept {
  if (sleep.sender >= 0) {
    bell_sleepers_[static_cast<std::size_t>(sleep.sender)].fetch_add(1, std::memory_order_seq_cst);
    num_bell_sleepers_.fetch_add(1, std::memory_order_seq_cst);
  }
  if (sleep.wants_space) page().wants_space.fetch_add(1, std::memory_order_seq_cst);
  doorbell_of(sleep).sleepers.fetch_add(1, std::memory_order_seq_cst);
}

void ShmEndpoint::end_sleep(const Sleep& sleep) noexcept {
  doorbell_of(sleep).sleepers.fetch_sub(1, std::memory_order_seq_cst);
  if (sleep.wants_space) page().wants_space.fetch_sub(1, std::memory_order_seq_cst);
  if (sleep.sender >= 0) {
    num_bell_sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    bell_sleepers_[static_cast<std::size_t>(sleep.sender)].fetch_sub(1, std::memory_order_seq_cst);
  }
}

void ShmEndpoint::observe(Sleep& sleep) {
  sleep.seen = doorbell_of(sleep).count.load(std::memory_order_seq_cst);
  if (sleep.sender < 0 || !has_kept_) return;
  // Room for a notice that is kept back is signaled on this rank's own doorbell.
  end_sleep(sleep);
  sleep.sender = -1;
  sleep.mask = wake_all;
  count_sleeper(sleep);
  sleep.seen = doorbell_of(sleep).count.load(std::memory_order_seq_cst);
}

bool ShmEndpoint::sleep(const Sleep& sleep, Deadline deadline) {
  return futex_wait(doorbell_of(sleep).count, static_cast<std::uint32_t>(sleep.seen), deadline.remaining(), sleep.mask);
}

void ShmEndpoint::flush() noexcept {
  if (pending_mask_.load(std::memory_order_relaxed) != 0) {
    if (const WakeMask mask = pending_mask_.exchange(0)) page().sends.ring(mask);
  }
  if (!has_pending_.load(std::memory_order_relaxed)) return;
  std::vector<std::pair<int, WakeMask>> wakes;
  std::vector<std::shared_ptr<const void>> released;  // destroyed after the lock is released
  {
    const std::lock_guard lock(mutex_);
    has_pending_ = false;
    wakes.swap(pending_wakes_);
    released.swap(released_);
  }
  for (const auto& [rank, mask] : wakes) control_.page(rank).own.ring(mask);
}

void ShmEndpoint::notify(const ChannelState* channel) noexcept {
  const WakeMask mask = channel == nullptr ? wake_all : wake_for(channel->key) | wake_for_memory;
  page().own.ring(mask);
  if (num_bell_sleepers_.load(std::memory_order_seq_cst) == 0) return;
  for (int sender = 0; sender < size(); ++sender) {
    const bool has_sleepers = bell_sleepers_[static_cast<std::size_t>(sender)].load(std::memory_order_seq_cst) != 0;
    if (has_sleepers) control_.page(sender).sends.ring(mask);
  }
}

void ShmEndpoint::wake_for_space(int other, WakeMask mask) const {
  RankPage& there = control_.page(other);
  if (there.wants_space.load(std::memory_order_seq_cst) != 0) there.own.ring(mask);
}

// ---- statuses

RankPage::BoardSlot& ShmEndpoint::board_of(std::uint64_t group) {
  auto& boards = page().board;
  const auto of = [&](std::uint64_t key) {
    return std::find_if(boards.begin(), boards.end(), [&](const auto& slot) { return slot.group == key; });
  };
  if (const auto found = of(group); found != boards.end()) return *found;
  const auto unused = of(0);
  auto& slot = unused != boards.end() ? *unused : boards[next_board_++ % boards.size()];
  slot.group = 0;  // so that no rank mistakes the old status for one of this group
  slot.board.post({});
  slot.group = group;
  return slot;
}

void ShmEndpoint::post(Group& group, const Status& status) {
  expect_usable();
  // If no group has ended yet, there is nothing to throw, and this call writes only this rank's words.
  if (control_.alarm().load(std::memory_order_seq_cst) != quiet_alarm_) check(group);
  const std::lock_guard lock(post_mutex_);
  board_of(group.key()).board.post(status);
}

Status ShmEndpoint::status(Group& group, int rank) {
  check(group);
  return last_status(group, rank);
}

Status ShmEndpoint::last_status(const Group& group, int rank) {
  for (const auto& slot : control_.page(group.endpoint_rank(rank)).board) {
    if (slot.group != group.key()) continue;
    const Status status = slot.board.read();
    if (slot.group == group.key()) return status;
  }
  return {};
}

}  // namespace levada::shm
