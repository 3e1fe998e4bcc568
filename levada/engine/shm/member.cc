#include "levada/engine/shm/member.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "levada/base/text.h"
#include "levada/engine/stream_channel.h"

namespace levada::shm {
namespace {

/// Between two looks at things that ring no doorbell: memory of the machine, a watcher that was stopped itself.
constexpr Duration longest_sleep = std::chrono::milliseconds(200);

using ShmChannel = StreamChannel<Member, Stream>;

Topics topics_of(const WaitFor& wanted) {
  Topics topics = wanted.allocate != 0 ? memory_topic : 0;
  for (const auto channels : {wanted.receive, wanted.publish}) {
    for (Channel* const channel : channels) topics |= topic_of(ShmChannel::stream_of(*channel)->key);
  }
  return topics != 0 ? topics : all_topics;
}

}  // namespace

Member::Member(HostMemory memory, std::function<MemoryLimits()> limits)
    : memory_(std::move(memory)),
      control_(memory_.control->data(), memory_.size),
      rank_(memory_.rank),
      size_(memory_.size),
      arena_(memory_.data[static_cast<std::size_t>(rank_)]->size(), Control::slots(size_)),
      budget_(std::move(limits)),
      sent_(static_cast<std::size_t>(size_)),
      received_(static_cast<std::size_t>(size_)),
      unsent_(static_cast<std::size_t>(size_)),
      peers_(static_cast<std::size_t>(size_)) {
  control_.page(rank_).process = ::getpid();
  watcher_ = std::make_unique<Watcher>(memory_.control, rank_, size_);
  views_ = std::make_unique<PrivateViews>(memory_.files);
}

Member::~Member() {
  if (!usable()) {
    // The threads are the parent's, and so are their locks.
    static_cast<void>(watcher_.release());
    static_cast<void>(views_.release());
    return;
  }
  RankPage& mine = control_.page(rank_);
  mine.left.store(1, std::memory_order_seq_cst);
  control_.note_end(rank_);
}

void Member::expect_usable() const {
  if (usable()) return;
  throw EngineError(
      "this shm engine belongs to the process that this one was forked from; start the child's own, or exec");
}

// ---- who lives

void Member::look() {
  if (has_unsent_) flush_notices();
  // An abort comes before what its rank did next, such as ending a stream: where an alarm was raised while the rings
  // were read, that is looked at as well.
  do look_once();
  while (control_.alarm().load(std::memory_order_seq_cst) != seen_alarm_);
}

void Member::look_once() {
  const std::uint32_t alarm = control_.alarm().load(std::memory_order_seq_cst);
  if (alarm != seen_alarm_) {
    seen_alarm_ = alarm;
    ++news_seen_;
    for (int rank = 0; rank < size_; ++rank) {
      const RankPage& there = control_.page(rank);
      Peer& peer = peers_[static_cast<std::size_t>(rank)];
      peer.left = there.left.load(std::memory_order_seq_cst) != 0;
      peer.dead = there.dead.load(std::memory_order_seq_cst) != 0;
      peer.gone = peer.dead || there.gone.load(std::memory_order_seq_cst) != 0;
    }
    // What had been sent before an end comes before it; whoever ended may not have come to set its bit.
    for (int rank = 0; rank < size_; ++rank) drain_from(rank);
    std::erase_if(streams_, [&](const auto& entry) { return is_over(*entry.second); });
  }
  drain();
}

void Member::look(Group& group) {
  look();
  if (group.seen == news_seen_) return;
  group.seen = news_seen_;
  if (!group.aborted) find_cause(group);
}

void Member::find_cause(Group& group) const {
  std::optional<Cause> first;
  std::uint32_t first_order = 0;
  const auto consider = [&](std::uint32_t order, Cause cause) {
    if (first && first_order <= order) return;
    first = std::move(cause);
    first_order = order;
  };
  for (const int host_rank : group.ranks) {
    const RankPage& there = control_.page(host_rank);
    if (const std::uint32_t order = there.dead.load(std::memory_order_seq_cst); order != 0) {
      const int lost = group.rank_of(host_rank);
      consider(order, {ErrorKind::peer_lost, lost,
                       fmt::format("rank {} (process {}) ended without leaving; its own output may say why", lost,
                                   there.process.load())});
    }
    if (const std::string& what = peers_[static_cast<std::size_t>(host_rank)].corrupt; !what.empty()) {
      consider(1, {ErrorKind::corrupt_message, group.rank_of(host_rank), what});
    }
  }
  for (int host_rank = 0; host_rank < size_; ++host_rank) {
    const RankPage& there = control_.page(host_rank);
    const auto count = std::min<std::size_t>(there.aborts.load(std::memory_order_acquire), RankPage::abort_records);
    for (std::size_t i = 0; i < count; ++i) {
      const AbortRecord& record = there.abort[i];
      const bool ours =
          record.group == 0 || std::find(group.keys.begin(), group.keys.end(), record.group) != group.keys.end();
      if (!ours) continue;
      group.aborted = true;
      const std::string_view reason(record.reason.data(), std::min<std::size_t>(record.size, record.reason.size()));
      consider(record.order, {ErrorKind::engine, -1, fmt::format("rank {} aborted: {}", record.rank, reason)});
    }
  }
  if (!group.cause) group.cause = std::move(first);
}

void Member::check(Group& group) {
  expect_usable();
  const std::lock_guard lock(mutex_);
  look(group);
  group.check();
}

// ---- entering and leaving

void Member::enter(const GroupState& group) {
  const std::lock_guard lock(mutex_);
  look();
  const bool whole_host = group.keys.size() == 1;
  if (whole_host) return;
  attendance_.enter_oneself(group.keys);
  for (const int rank : group.ranks) {
    Descriptor entered;
    entered.key = group.key();
    entered.kind = Descriptor::Kind::group_entered;
    if (rank != rank_) notice(rank, entered);
  }
}

void Member::leave(Group& group) noexcept {
  if (!usable()) return;
  const std::lock_guard lock(mutex_);
  end_streams(&group);
  for (const int rank : group.ranks) {
    Descriptor left;
    left.key = group.key();
    left.kind = Descriptor::Kind::group_left;
    if (rank != rank_) notice(rank, left);
  }
  attendance_.leave_oneself(group.keys, group.ranks.size() - 1);
}

void Member::leave_all() noexcept {
  if (!usable()) return;
  const std::lock_guard lock(mutex_);
  end_streams(nullptr);
  control_.page(rank_).left.store(1, std::memory_order_seq_cst);
  control_.raise_alarm();
}

void Member::abort(Group& group, std::string_view reason) noexcept {
  if (!usable()) return;
  const std::lock_guard lock(mutex_);
  RankPage& mine = control_.page(rank_);
  const std::uint32_t written = mine.aborts.load(std::memory_order_relaxed);
  if (written >= RankPage::abort_records) return;
  AbortRecord& record = mine.abort[written];
  // The last record has to serve for whatever may still come.
  record.group = written + 1 == RankPage::abort_records ? 0 : group.key();
  record.order = control_.next_order();
  record.rank = group.rank;
  reason = cut_text(reason, record.reason.size());
  record.size = static_cast<std::uint32_t>(reason.size());
  std::memcpy(record.reason.data(), reason.data(), record.size);  // not payload: a reason
  mine.aborts.store(written + 1, std::memory_order_release);
  control_.raise_alarm();
}

// ---- waiting

/// While it lives, others ring this rank's doorbell.
class Member::Announcement {
 public:
  Announcement(RankPage& page, bool wants_space) : page_(page), wants_space_(wants_space) {
    if (wants_space_) page_.wants_space.fetch_add(1, std::memory_order_seq_cst);
    page_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Announcement() {
    page_.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (wants_space_) page_.wants_space.fetch_sub(1, std::memory_order_seq_cst);
  }
  Announcement(const Announcement&) = delete;
  Announcement& operator=(const Announcement&) = delete;

 private:
  RankPage& page_;
  bool wants_space_;
};

bool Member::satisfied(Group& group, const WaitFor& wanted) {
  const std::lock_guard lock(mutex_);
  look(group);
  group.check_aborted();
  for (Channel* const channel : wanted.receive) {
    const auto& stream = ShmChannel::stream_of(*channel);
    if (!stream->arrived.empty() || !stream->taking || sender_over(*stream)) return true;
  }
  group.check();
  for (Channel* const channel : wanted.publish) {
    const auto& stream = ShmChannel::stream_of(*channel);
    if (!stream->sending || has_room(*stream)) return true;
  }
  return wanted.allocate != 0 && can_allocate(wanted.allocate);
}

Woken Member::wait(Group& group, const WaitFor& wanted, Deadline deadline) {
  expect_usable();
  if (satisfied(group, wanted)) return Woken::ready;
  RankPage& mine = control_.page(rank_);
  const Topics topics = topics_of(wanted);
  const Announcement announcement(mine, !wanted.publish.empty() || wanted.allocate != 0);
  while (true) {
    const std::uint32_t seen = mine.doorbell.load(std::memory_order_seq_cst);
    if (satisfied(group, wanted)) return Woken::ready;
    if (wanted.stop != nullptr && wanted.stop->load(std::memory_order_seq_cst)) return Woken::stopped;
    if (deadline.expired()) return Woken::timeout;
    const Duration sleep = std::min(wanted.poll_before_sleep(deadline), longest_sleep);
    if (!futex_wait(mine.doorbell, seen, sleep, topics)) control_.find_deaths();
  }
}

void Member::wake() {
  expect_usable();
  RankPage& mine = control_.page(rank_);
  mine.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (mine.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(mine.doorbell);
}

void Member::wake_if_waiting_for_space(int rank, Topics topics) const {
  if (control_.page(rank).wants_space.load(std::memory_order_seq_cst) != 0) control_.ring_doorbell(rank, topics);
}

// ---- the board

void Member::post(Group& group, const Status& status) {
  expect_usable();
  const std::lock_guard lock(mutex_);
  look(group);
  group.check();
  control_.page(rank_).board.post(status);
}

Status Member::status(Group& group, int host_rank) {
  check(group);
  return control_.page(host_rank).board.read();
}

}  // namespace levada::shm
