#include "levada/engine/shm/endpoint.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "levada/base/assert.h"
#include "levada/base/text.h"
#include "levada/engine/group_engine.h"

namespace levada::shm {
namespace {

/// A MemorySource over this rank's shared memory.
class SharedMemory final : public MemorySource {
 public:
  explicit SharedMemory(const HostMemory& memory)
      : control_(memory.control),
        page_(&Control(control_->data(), memory.size).page(memory.rank)),
        mapping_(memory.data[static_cast<std::size_t>(memory.rank)]) {}
  std::span<std::byte> memory() const override { return mapping_->memory(); }
  bool populate(Interval interval) noexcept override {
    return populate_pages(memory().subspan(interval.begin, interval.size()));
  }
  bool discard(Interval interval) noexcept override {
    if (page_->keeps_pages.load(std::memory_order_seq_cst) != 0) return false;
    return ::madvise(memory().data() + interval.begin, interval.size(), MADV_REMOVE) == 0;
  }

 private:
  std::shared_ptr<const Mapping> control_;
  const RankPage* page_;
  std::shared_ptr<const Mapping> mapping_;
};

std::shared_ptr<BlockPool> make_pool(const HostMemory& memory, const std::function<MemoryLimits()>& limits) {
  const auto wake = [control = memory.control, rank = memory.rank, size = memory.size] {
    RankPage& page = Control(control->data(), size).page(rank);
    if (page.wants_space.load(std::memory_order_seq_cst) != 0) page.own.ring(wake_for_memory);
  };
  return std::make_shared<BlockPool>(
      std::make_unique<SharedMemory>(memory),
      BlockPoolOptions{.engine = "shm", .on_free = wake, .limits = limits, .max_slots = Control::slots(memory.size)});
}

levada::Endpoint::Traits traits_of(const EndpointOptions& options) {
  levada::Endpoint::Traits traits{.heartbeat = options.heartbeat};
  traits.channels = {.sends_receipts = false, .make_state = []() -> std::shared_ptr<ChannelState> {
                       return std::make_shared<ShmChannelState>();
                     }};
  return traits;
}

/// Returns an Arrival::id.
std::uint64_t id_of(const Descriptor& descriptor) {
  return std::uint64_t{descriptor.slot} << 32 | descriptor.generation;
}

/// Returns the kind of an AbortRecord, which another process has written.
ErrorKind abort_kind(std::uint32_t written) {
  for (const ErrorKind kind : {ErrorKind::invalid_argument, ErrorKind::timeout}) {
    if (written == static_cast<std::uint32_t>(kind)) return kind;
  }
  return ErrorKind::engine;
}

/// Reads a record that its rank may overwrite during the read. Returns nothing if it did.
std::optional<std::pair<std::uint32_t, Ending>> read_abort(const RankPage& page, int rank, std::uint32_t index) {
  const AbortRecord& record = page.abort[index % RankPage::abort_records];
  if (record.number.load(std::memory_order_acquire) != index + 1) return {};
  const std::string_view detail(record.detail.data(), std::min<std::size_t>(record.size, record.detail.size()));
  std::pair<std::uint32_t, Ending> read{
      record.order,
      {.kind = abort_kind(record.kind), .group = record.group, .rank = rank, .detail = std::string(detail)}};
  std::atomic_thread_fence(std::memory_order_acquire);
  if (record.number.load(std::memory_order_relaxed) != index + 1) return {};
  return read;
}

}  // namespace

ShmEndpoint::ShmEndpoint(HostMemory memory, EndpointOptions options)
    : Endpoint({.name = "shm", .rank = memory.rank, .host_of = std::vector<int>(static_cast<std::size_t>(memory.size))},
               nullptr, make_pool(memory, options.limits), traits_of(options)),
      memory_(std::move(memory)),
      control_(memory_.control->data(), memory_.size),
      bell_sleepers_(static_cast<std::size_t>(size())),
      num_pushed_(static_cast<std::size_t>(size())),
      num_drained_(static_cast<std::size_t>(size())),
      kept_(static_cast<std::size_t>(size())),
      peers_(static_cast<std::size_t>(size())) {
  page().process = ::getpid();
  watcher_ = std::make_unique<Watcher>(memory_.control, rank(), size(), options.watch_interval);
  views_ = std::make_unique<PrivateViews>(memory_.files);
}

ShmEndpoint::~ShmEndpoint() {
  if (!is_usable()) {
    // The threads and their locks are the parent's.
    static_cast<void>(watcher_.release());
    static_cast<void>(views_.release());
    return;
  }
  page().left.store(1, std::memory_order_seq_cst);
  control_.note_end(rank());
}

// ---- receiving events

void ShmEndpoint::drain() {
  if (has_kept_) push_kept();
  // An abort must be seen before its rank's later events, such as closing a channel. If an alarm was raised while the
  // rings were read, handle it too.
  do {
    if (control_.alarm().load(std::memory_order_seq_cst) != seen_alarm_) notice_ends();
    drain_rings();
  } while (control_.alarm().load(std::memory_order_seq_cst) != seen_alarm_);
  const std::uint64_t quiet_alarm = table_.num_endings() == 0 ? seen_alarm_ : not_quiet;
  if (quiet_alarm_.load(std::memory_order_relaxed) != quiet_alarm) quiet_alarm_ = quiet_alarm;
}

void ShmEndpoint::notice_ends() {
  seen_alarm_ = control_.alarm().load(std::memory_order_seq_cst);
  std::vector<std::pair<std::uint32_t, Ending>> endings;  // with their order
  for (int other = 0; other < size(); ++other) {
    const RankPage& there = control_.page(other);
    Peer& peer = peers_[static_cast<std::size_t>(other)];
    const std::uint32_t aborts = there.aborts.load(std::memory_order_acquire);
    if (other == rank()) peer.num_aborts = aborts;
    for (; peer.num_aborts != aborts; ++peer.num_aborts) {
      if (auto read = read_abort(there, other, peer.num_aborts)) {
        endings.push_back(*std::move(read));
        continue;
      }
      // The missed records may concern any group.
      endings.emplace_back(control_.next_order(),
                           Ending{.kind = ErrorKind::engine,
                                  .rank = other,
                                  .detail = fmt::format("it has ended more than {} groups while this rank made no call",
                                                        RankPage::abort_records)});
      peer.num_aborts = aborts;
      break;
    }
    const bool has_left = there.left.load(std::memory_order_seq_cst) != 0;
    const std::uint32_t death = there.dead.load(std::memory_order_seq_cst);
    peer.gone = death != 0 || there.gone.load(std::memory_order_seq_cst) != 0;
    const bool has_ended = has_left ? !std::exchange(peer.left, true) : death != 0 && !std::exchange(peer.dead, true);
    if (!has_ended || other == rank()) continue;
    // Messages that it sent precede its end. Drain its ring in any case, because it may not have set its bit in
    // `pending`.
    const std::uint64_t ever = page().senders[static_cast<std::size_t>(other / 64)].load(std::memory_order_seq_cst);
    if ((ever >> (other % 64) & 1U) != 0) drain_ring(other);
    if (has_left) {
      table_.apply(other, {.kind = Notice::Kind::departed});
    } else {
      endings.emplace_back(death,
                           Ending{.kind = ErrorKind::peer_lost,
                                  .rank = other,
                                  .detail = fmt::format("its process {} no longer runs; its own output may say why",
                                                        there.process.load())});
    }
  }
  std::sort(endings.begin(), endings.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [order, ending] : endings) table_.end(std::move(ending));
}

void ShmEndpoint::drain_rings() {
  auto& pending = page().pending;
  const int words = (size() + 63) / 64;
  for (int w = 0; w < words; ++w) {
    auto& word = pending[static_cast<std::size_t>(w)];
    if (word.load(std::memory_order_seq_cst) == 0) continue;
    std::uint64_t bits = word.exchange(0, std::memory_order_seq_cst);
    for (; bits != 0; bits &= bits - 1) {
      const int from = 64 * w + std::countr_zero(bits);
      if (from < size()) drain_ring(from);
    }
  }
}

void ShmEndpoint::drain_ring(int from) {
  if (table_.is_gone(from)) return;
  Ring ring = control_.ring(from, rank());
  std::uint64_t& drained = num_drained_[static_cast<std::size_t>(from)];
  const auto waiting = ring.waiting(drained);
  if (!waiting) return mark_corrupt(from, "its ring counts more descriptors than it can hold");
  if (*waiting == 0) return;
  const std::uint64_t end = drained + *waiting;
  try {
    while (drained != end) accept(from, ring.at(drained++));
  } catch (const CorruptMessage& error) {
    mark_corrupt(from, error.what());
  }
  ring.pop_to(drained);
  if (ring.may_have_been_full(drained, *waiting)) wake_for_space(from, wake_all);
}

void ShmEndpoint::accept(int from, const Descriptor& descriptor) {
  using Kind = Descriptor::Kind;
  switch (descriptor.kind) {
    case Kind::message: {
      const Mapping& data = *memory_.data[static_cast<std::size_t>(from)];
      const auto end = checked_add(descriptor.offset, descriptor.bytes);
      const bool is_a_block = descriptor.offset % page_bytes == 0 && descriptor.slot < Control::slots(size());
      if (descriptor.bytes == 0 || !end || *end > data.size() || !is_a_block) {
        throw CorruptMessage(0, fmt::format("a message of {} bytes at {} in slot {}, with {} bytes of memory",
                                            descriptor.bytes, descriptor.offset, descriptor.slot, data.size()));
      }
      const ByteView bytes = data.memory().subspan(descriptor.offset, descriptor.bytes);
      return table_.arrive(from, descriptor.key, {.bytes = bytes, .id = id_of(descriptor)});
    }
    case Kind::opened:
      return table_.apply(from, {.kind = Notice::Kind::opened,
                                 .key = descriptor.key,
                                 .group = descriptor.offset,
                                 .window = static_cast<std::int32_t>(descriptor.slot)});
    case Kind::sender_closed:
      return table_.apply(from,
                          {.kind = Notice::Kind::sender_closed, .key = descriptor.key, .group = descriptor.offset});
    case Kind::receiver_closed:
      return table_.apply(from,
                          {.kind = Notice::Kind::receiver_closed, .key = descriptor.key, .group = descriptor.offset});
    case Kind::staying: return table_.apply(from, {.kind = Notice::Kind::staying, .key = descriptor.key});
    case Kind::left: return table_.apply(from, {.kind = Notice::Kind::left, .key = descriptor.key});
  }
  throw CorruptMessage(0, fmt::format("a descriptor of kind {}", static_cast<unsigned>(descriptor.kind)));
}

void ShmEndpoint::mark_corrupt(int from, const std::string& what) {
  table_.end({.kind = ErrorKind::corrupt_message,
              .rank = from,
              .detail = fmt::format("{}; its memory may have been overwritten", what)});
  notify(nullptr);
}

// ---- sending events

void ShmEndpoint::carry(const AddressedNotice& addressed) {
  using Kind = Notice::Kind;
  const auto& [to, notice] = addressed;
  Descriptor descriptor;
  descriptor.key = notice.key;
  descriptor.offset = notice.group;
  WakeMask mask = wake_all;
  switch (notice.kind) {
    case Kind::opened:
      descriptor.kind = Descriptor::Kind::opened;
      descriptor.slot = static_cast<std::uint32_t>(notice.window);
      return push_or_keep(to, descriptor);  // the message that follows rings
    case Kind::sender_closed:
      descriptor.kind = Descriptor::Kind::sender_closed;
      mask = wake_for(notice.key);
      break;
    case Kind::receiver_closed:
      descriptor.kind = Descriptor::Kind::receiver_closed;
      mask = wake_for(notice.key) | wake_for_memory;
      break;
    case Kind::staying: descriptor.kind = Descriptor::Kind::staying; break;
    case Kind::left: descriptor.kind = Descriptor::Kind::left; break;
    case Kind::departed:
      if (page().left.exchange(1, std::memory_order_seq_cst) == 0) control_.raise_alarm();
      return;
    case Kind::received:
    case Kind::waiting: return;  // acknowledgments are shared words
  }
  push_or_keep(to, descriptor);
  ring_later(to, mask);
  pending_mask_.fetch_or(mask);
}

void ShmEndpoint::carry(const Group& group, const Ending& ending) {
  RankPage& mine = page();
  const std::uint32_t written = mine.aborts.load(std::memory_order_relaxed);
  AbortRecord& record = mine.abort[written % RankPage::abort_records];
  record.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  record.group = group.key();
  record.order = control_.next_order();
  record.kind = static_cast<std::uint32_t>(ending.kind);
  const std::string_view detail = cut_text(ending.detail, record.detail.size());
  record.size = static_cast<std::uint32_t>(detail.size());
  std::memcpy(record.detail.data(), detail.data(), record.size);  // not payload: a reason
  record.number.store(written + 1, std::memory_order_release);
  mine.aborts.store(written + 1, std::memory_order_release);
  control_.raise_alarm();
}

void ShmEndpoint::push(int to, const Descriptor& descriptor) {
  std::uint64_t& pushed = num_pushed_[static_cast<std::size_t>(to)];
  RankPage& there = control_.page(to);
  const auto word = static_cast<std::size_t>(rank() / 64);
  const std::uint64_t bit = std::uint64_t{1} << (rank() % 64);
  if (pushed == 0) there.senders[word].fetch_or(bit, std::memory_order_seq_cst);
  control_.ring(rank(), to).push(pushed, descriptor);
  there.pending[word].fetch_or(bit, std::memory_order_seq_cst);
}

void ShmEndpoint::push_or_keep(int to, const Descriptor& descriptor) {
  const auto index = static_cast<std::size_t>(to);
  const auto room = control_.ring(rank(), to).room(num_pushed_[index]);
  if (!room) return;  // a faulty peer; has_room() reports it
  if (*room != 0 && kept_[index].empty()) return push(to, descriptor);
  kept_[index].push_back(descriptor);
  if (has_kept_) return;
  has_kept_ = true;
  page().wants_space.fetch_add(1, std::memory_order_seq_cst);
  notify(nullptr);  // the peer signals room on this rank's own doorbell; there may already be room
}

void ShmEndpoint::push_kept() {
  bool is_rest = false;
  for (int to = 0; to < size(); ++to) {
    const auto index = static_cast<std::size_t>(to);
    auto& kept = kept_[index];
    if (kept.empty()) continue;
    const auto room = control_.ring(rank(), to).room(num_pushed_[index]);
    if (!room || table_.is_gone(to)) {
      kept.clear();
      continue;
    }
    const auto end = kept.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(*room, kept.size()));
    for (auto each = kept.begin(); each != end; ++each) push(to, *each);
    if (end != kept.begin()) {
      ring_later(to, wake_all);
      pending_mask_ = wake_all;
    }
    kept.erase(kept.begin(), end);
    is_rest = is_rest || !kept.empty();
  }
  if (is_rest) return;
  has_kept_ = false;
  page().wants_space.fetch_sub(1, std::memory_order_seq_cst);
}

void ShmEndpoint::ring_later(int other, WakeMask mask) {
  if (control_.page(other).own.sleepers.load(std::memory_order_seq_cst) == 0) return;
  pending_wakes_.emplace_back(other, mask);
  has_pending_ = true;
}

// ---- sending

void ShmEndpoint::collect_receipts(ChannelState& channel) {
  auto& outstanding = own_state(channel).outstanding;
  // Must come first, so that the last receiver finds that all others have received the message, and wakes this rank.
  for (const auto& [slot, generation] : outstanding) release_for_gone(channel, slot, generation);
  LEVADA_ASSERT(outstanding.size() <= channel.num_sent, "outstanding messages have been sent");
  const std::uint64_t first = channel.num_sent - outstanding.size();
  std::uint64_t slowest = channel.num_sent;
  for (auto& receiver : channel.receivers) {
    if (table_.receiver_is_over(channel, receiver)) continue;
    receiver.num_received = std::max(receiver.num_received, first);
    while (receiver.num_received < channel.num_sent) {
      const auto [slot, generation] = outstanding[receiver.num_received - first];
      if (control_.ack(rank(), slot, receiver.rank).step(generation) == SlotAck::published) break;
      ++receiver.num_received;
    }
    slowest = std::min(slowest, receiver.num_received);
  }
  outstanding.erase(outstanding.begin(), outstanding.begin() + static_cast<std::ptrdiff_t>(slowest - first));
}

bool ShmEndpoint::has_room(ChannelState& channel) {
  if (!table_.has_room(channel)) {
    collect_receipts(channel);
    if (!table_.has_room(channel)) return false;
  }
  for (const auto& receiver : channel.receivers) {
    if (!ring_has_room(receiver.rank) && !table_.receiver_is_over(channel, receiver)) return false;
  }
  return true;
}

void ShmEndpoint::release_for_gone(const ChannelState& channel, std::uint32_t slot, std::uint32_t generation) {
  for (const auto& receiver : channel.receivers) {
    SlotAck ack = control_.ack(rank(), slot, receiver.rank);
    if (peers_[static_cast<std::size_t>(receiver.rank)].gone) ack.mark_returned(generation);
    if (table_.receiver_is_over(channel, receiver) || table_.is_gone(receiver.rank)) ack.drop(generation);
  }
}

bool ShmEndpoint::ring_has_room(int to) {
  if (!kept_[static_cast<std::size_t>(to)].empty()) return false;  // nothing may overtake notices that are kept
  const auto room = control_.ring(rank(), to).room(num_pushed_[static_cast<std::size_t>(to)]);
  if (!room) mark_corrupt(to, "its ring counts more descriptors received than were sent");
  return room.value_or(0) > Ring::reserve;
}

void ShmEndpoint::send(ChannelState& channel, Message message) {
  const bool has_receiver = std::any_of(channel.receivers.begin(), channel.receivers.end(), [&](const auto& receiver) {
    return !table_.receiver_is_over(channel, receiver);
  });
  if (!has_receiver) return;
  LEVADA_ASSERT(pool_->slot_at(message.bytes.data()), "a message is in one of this rank's blocks");
  const std::uint32_t slot = *pool_->slot_at(message.bytes.data());
  if (publications_.size() <= slot) publications_.resize(slot + 1);
  in_flight_.reserve(in_flight_.size() + 1);
  Publication& publication = publications_[slot];
  LEVADA_ASSERT(!publication.channel, "a block is on one channel at a time");
  publication.generation = (publication.generation + 1) % generations;
  publication.channel = channel.shared_from_this();
  publication.hold = std::move(message.hold);
  Descriptor descriptor;
  descriptor.key = channel.key;
  descriptor.offset = memory_.data[static_cast<std::size_t>(rank())]->offset_of(message.bytes.data());
  descriptor.bytes = message.bytes.size();
  descriptor.slot = slot;
  descriptor.generation = publication.generation & (generations - 1);
  own_state(channel).outstanding.push_back({slot, publication.generation});
  in_flight_.push_back(slot);
  static_cast<void>(message.block.release());
  const WakeMask mask = wake_for(channel.key);
  for (const auto& receiver : channel.receivers) {
    if (table_.receiver_is_over(channel, receiver)) continue;
    control_.ack(rank(), slot, receiver.rank).publish(publication.generation);
    if (receiver.rank == rank()) table_.arrive(rank(), channel.key, {.bytes = message.bytes, .id = id_of(descriptor)});
    else push(receiver.rank, descriptor);
  }
  for (const auto& receiver : channel.receivers) ring_later(receiver.rank, mask);
  pending_mask_.fetch_or(mask);
}

void ShmEndpoint::check_forwarded(ByteView bytes) const {
  const auto slot = pool_->slot_at(bytes.data());
  if (!slot) {
    throw Unsupported("the shm engine publishes only bytes in this rank's own blocks; copy the message into a block");
  }
  if (*slot < publications_.size() && publications_[*slot].channel) {
    throw Unsupported("the shm engine sends a block on one channel at a time; copy the message into another block");
  }
}

std::shared_ptr<Engine> make_engine(std::shared_ptr<ShmEndpoint> endpoint) {
  return levada::make_engine(std::move(endpoint), "host");
}

}  // namespace levada::shm
