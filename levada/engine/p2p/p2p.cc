#include "levada/engine/p2p/p2p.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <unordered_map>
#include <utility>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/engine/block_pool.h"
#include "levada/engine/endpoint.h"
#include "levada/engine/event_count.h"
#include "levada/engine/group_engine.h"
#include "levada/engine/p2p/frame.h"
#include "levada/engine/p2p/outbox.h"
#include "levada/engine/process_failure.h"

namespace levada::p2p {
namespace {

/// Owner of a message's bytes, counted as long as a lease holds it.
class LeaseState {
 public:
  LeaseState(std::shared_ptr<const void> bytes, std::shared_ptr<std::atomic<int>> count,
             std::shared_ptr<EventCount> changed, std::shared_ptr<const ForkToken> token)
      : bytes_(std::move(bytes)), count_(std::move(count)), changed_(std::move(changed)), token_(std::move(token)) {
    ++*count_;
  }
  ~LeaseState() {
    if (!token_->valid()) return;  // in a forked child, the event count's waiters belong to the parent
    --*count_;
    changed_->notify();
  }
  LeaseState(const LeaseState&) = delete;
  LeaseState& operator=(const LeaseState&) = delete;

 private:
  std::shared_ptr<const void> bytes_;
  std::shared_ptr<std::atomic<int>> count_;
  std::shared_ptr<EventCount> changed_;
  std::shared_ptr<const ForkToken> token_;
};

struct P2pChannelState final : ChannelState {
  std::atomic<bool> has_forwarded = false;  ///< this rank has published bytes in another message's memory
  std::shared_ptr<std::atomic<int>> num_leased =
      std::make_shared<std::atomic<int>>(0);  ///< number of messages that this rank, as a receiver, has leased
  std::shared_ptr<std::atomic<int>> in_transit =
      std::make_shared<std::atomic<int>>(0);  ///< number of bodies that the transport holds
};

P2pChannelState& own(ChannelState& channel) {
  return static_cast<P2pChannelState&>(channel);
}

Entry lost_entry(int rank, std::string_view why) {
  return entry_of({.kind = ErrorKind::peer_lost, .rank = rank, .detail = std::string(why)});
}

/// Arrival::id of a message in a block of the channel's landing.
constexpr std::uint64_t landed = 1;

/// The transport's threads call the functions of Receiver.
class P2pEndpoint final : public Endpoint, public Receiver {
 public:
  P2pEndpoint(std::shared_ptr<Transport> transport, std::shared_ptr<EventCount> changed, const Options& options)
      : Endpoint({transport->name(), transport->rank(), transport->host_of(), options.degree}, changed,
                 pool_of(transport->name(), options.memory_bytes, changed, options), traits_of(*transport, options)),
        transport_(std::move(transport)),
        arrivals_(pool_of(identity_.name, 0, changed_, options)),
        outbox_(transport_, size()),
        max_inline_bytes_(transport_->max_header_bytes() - entry_bytes),
        is_ignored_(static_cast<std::size_t>(size())),
        board_age_(usual_heartbeat(size())) {}

  void start() { transport_->start(std::static_pointer_cast<P2pEndpoint>(shared_from_this())); }

  bool shares_memory(int other) const override { return other == rank(); }
  void report_lost(int other, std::string_view how) noexcept override { lost(other, how); }
  void post(Group& group, const Status& status) override;
  Status status(Group& group, int rank) override;
  std::span<std::byte> make_private(ChannelState& channel, Lease& lease) override;
  std::uint64_t trim() override {
    const std::uint64_t trimmed = Endpoint::trim();  // first, because it rejects a forked child
    return trimmed + arrivals_->trim();
  }

  // Receiver
  Block room_for_body(int from, ByteView header) override;
  void deliver(int from, ByteView header, Block body, std::size_t body_bytes) override;
  using Receiver::lost;
  void lost(std::span<const int> peers, std::string_view why) override;
  bool is_closed(int peer) override;
  bool all_closed() override;
  bool has_failed() override;
  void flush_deferred() override { outbox_.flush_deferred(failed_); }

 protected:
  void carry(const AddressedNotice& addressed) override;
  void carry(const Group& group, const Ending& ending) override;
  bool has_room(ChannelState& channel) override;
  void send(ChannelState& channel, Message message) override;
  Received lease(ChannelState& channel, Arrival arrival) override;
  int num_leased(ChannelState& channel, const ChannelState::Receiver& receiver) override {
    return receiver.rank == rank() ? own(channel).num_leased->load() : 0;
  }
  void flush() noexcept override { outbox_.flush(failed_); }
  Status last_status(const Group& group, int rank) override { return slot(group, rank).status; }
  void forget_status(const Group& group) override { boards_.erase(group.key()); }
  bool sleep(const Sleep& sleep, Deadline deadline) override;
  void after_quiet(Group& group) override;

 private:
  /// A posted status stays on its rank until another rank asks for it.
  struct StatusSlot {
    Status status{};                           ///< this rank's own, or the last answer of another rank
    std::optional<Clock::time_point> asked{};  ///< when the unanswered request was sent
  };
  static std::shared_ptr<BlockPool> pool_of(const std::string& name, std::size_t memory_bytes,
                                            const std::shared_ptr<EventCount>& changed, const Options& options) {
    const std::size_t bytes = memory_bytes == 0 ? std::size_t{1} << 40 : memory_bytes;
    return make_heap_pool(bytes,
                          {.engine = name, .on_free = [changed] { changed->notify(); }, .limits = options.limits});
  }
  /// Ranks ask less often in larger groups.
  static Duration usual_heartbeat(int size) { return std::chrono::milliseconds(100 + 10 * size); }
  static Traits traits_of(const Transport& transport, const Options& options) {
    const Duration usual = usual_heartbeat(static_cast<int>(transport.host_of().size()));
    Traits traits{.heartbeat = options.heartbeat == Duration::zero() ? usual : options.heartbeat};
    traits.channels.make_state = []() -> std::shared_ptr<ChannelState> { return std::make_shared<P2pChannelState>(); };
    return traits;
  }

  // With mutex_ held:
  void accept(int from, const Entry& entry, Block block);
  void end_for_all(const Ending& ending);
  void lose(std::span<const int> peers, std::string_view why);
  void given_up_by(int peer, std::string_view why);
  void end_aborted(Ending ending);
  struct Board {
    std::vector<StatusSlot> slots;  ///< by rank
    Clock::time_point asked{};      ///< when all ranks were asked
  };
  Board& board(const Group& group);
  StatusSlot& slot(const Group& group, int rank) { return board(group).slots[static_cast<std::size_t>(rank)]; }
  void ask_status(Group& group, int rank);
  bool is_closed_locked(int peer) const {
    return peer == rank() || table_.is_gone(peer) || is_ignored_[static_cast<std::size_t>(peer)];
  }

  // Without mutex_ held:
  /// Returns memory for a message. If there is none, ends all groups and returns an empty block.
  Block block_for(int from, const Entry& entry);
  void end_with_corrupt(int from, const Error& error);

  const std::shared_ptr<Transport> transport_;
  /// Memory for received messages, bounded by the windows. Separate, so that a rank can receive even if its own blocks
  /// use all the memory that they may.
  const std::shared_ptr<BlockPool> arrivals_;
  const std::shared_ptr<const ForkToken> fork_token_ =
      std::make_shared<ForkToken>();  ///< for leases that outlive this endpoint
  Outbox outbox_;
  const std::size_t max_inline_bytes_;
  const Outbox::Failed failed_ = [this](int peer, std::string_view why) { lost(peer, why); };
  std::vector<bool> is_ignored_;                     ///< peers from which a body was not received; guarded by mutex_
  std::unordered_map<std::uint64_t, Board> boards_;  ///< by group; guarded by mutex_
  const Duration board_age_;
};

// ---- sending

void P2pEndpoint::carry(const AddressedNotice& addressed) {
  const auto& [to, notice] = addressed;
  if (notice.kind == Notice::Kind::departed) return outbox_.finish(to, entry_of(notice));
  const bool is_receipt = notice.kind == Notice::Kind::received;
  outbox_.add(to, entry_of(notice), notice.is_urgent, is_receipt ? std::optional(notice.key) : std::nullopt);
}

void P2pEndpoint::carry(const Group& group, const Ending& ending) {
  const Entry entry = entry_of(ending);
  for (const int to : group.ranks) {
    if (to != rank()) outbox_.add(to, entry, true);
  }
}

bool P2pEndpoint::has_room(ChannelState& channel) {
  // The transport may still hold messages that all receivers have; their memory must be bounded, too.
  if (*own(channel).in_transit >= 2 * std::int64_t{channel.spec.window}) return false;
  if (table_.has_room(channel)) return true;
  table_.ask_for_room(channel);
  flush_queued();
  return false;
}

void P2pEndpoint::send(ChannelState& channel, Message message) {
  if (message.block) message.hold = std::make_shared<const Block>(std::move(message.block));
  else own(channel).has_forwarded = true;
  std::vector<int> peers;
  for (const auto& receiver : channel.receivers) {
    if (table_.receiver_is_over(channel, receiver)) continue;
    if (receiver.rank != rank()) peers.push_back(receiver.rank);
    else table_.arrive(rank(), channel.key, {message.bytes, message.hold});
  }
  notify();
  if (peers.empty()) return;
  Entry entry{.key = channel.key, .count = message.bytes.size()};
  if (message.bytes.size() <= max_inline_bytes_) {
    entry.payload = message.bytes;
    entry.hold = std::move(message.hold);
    return outbox_.add(peers, entry, {});
  }
  outbox_.add(peers, entry,
              {message.bytes,
               std::make_shared<LeaseState>(std::move(message.hold), own(channel).in_transit, changed_, fork_token_)});
}

bool P2pEndpoint::sleep(const Sleep& sleep, Deadline deadline) {
  while (true) {
    const Duration next = transport_->progress();
    if (next >= deadline.remaining()) return Endpoint::sleep(sleep, deadline);
    if (Endpoint::sleep(sleep, Deadline::after(next))) return true;
  }
}

// ---- receiving

Received P2pEndpoint::lease(ChannelState& channel, Arrival arrival) {
  if (arrival.id == landed) {
    auto* const block =
        const_cast<Block*>(static_cast<const Block*>(arrival.hold.get()));  // the block itself is not const
    return {.message = Lease{arrival.bytes, nullptr}, .landed = std::move(*block)};
  }
  if (channel.sends) {
    notify();  // its room and memory are this rank's
    arrival.hold =
        std::make_shared<LeaseState>(std::move(arrival.hold), own(channel).num_leased, changed_, fork_token_);
  }
  return {.message = Lease{arrival.bytes, std::move(arrival.hold)}};
}

std::span<std::byte> P2pEndpoint::make_private(ChannelState& channel, Lease& lease) {
  expect_usable();
  // The same bytes may still be in transit to other ranks, or belong to another message.
  const bool is_shared = channel.sends && (channel.spec.to.size() > 1 || own(channel).has_forwarded);
  if (is_shared) return {};
  return {const_cast<std::byte*>(lease.bytes.data()), lease.bytes.size()};
}

Block P2pEndpoint::block_for(int from, const Entry& entry) {
  Landing landing;
  if (has_landings_) {
    const std::lock_guard lock(mutex_);
    landing = table_.landing(from, entry.key);
  }
  if (landing) {
    try {
      auto block = landing(entry.count);
      if (block && block->memory().size() >= entry.count) return *std::move(block);
    } catch (const std::exception&) {  // the block's engine has ended, so the message lands here
    }
  }
  try {
    if (auto block = arrivals_->try_allocate(entry.count)) return *std::move(block);
  } catch (const InvalidArgument&) {  // larger than the pool can ever be
  }
  const Lock lock(*this);
  if (is_closed_locked(from)) return {};
  // The transport cannot distinguish the next body of this peer from the one that was not received.
  is_ignored_[static_cast<std::size_t>(from)] = has_body(entry);
  end_for_all({.kind = ErrorKind::engine,
               .rank = rank(),
               .detail = fmt::format("it has no memory left for a message of {} from rank {}; give its host or control "
                                     "group more, or use smaller windows or messages",
                                     format_bytes(entry.count), from)});
  notify();
  return {};
}

Block P2pEndpoint::room_for_body(int from, ByteView header) {
  try {
    const Entry last = decode(header, size()).back();
    if (!has_body(last) || is_closed(from)) return {};
    return block_for(from, last);
  } catch (const Error& error) {
    end_with_corrupt(from, error);
    return {};
  }
}

void P2pEndpoint::deliver(int from, ByteView header, Block body, std::size_t body_bytes) {
  try {
    std::vector<std::pair<Entry, Block>> incoming;  // payload is copied before taking the lock
    for (const Entry& entry : decode(header, size())) {
      Block block;
      if (entry.kind == Entry::Kind::message) {
        block = has_body(entry) ? std::exchange(body, {}) : block_for(from, entry);
        if (!block) continue;  // there was no memory for it
        if (has_body(entry) && body_bytes < entry.count) {
          throw CorruptMessage(body_bytes,
                               fmt::format("a body of {} bytes for a message of {}", body_bytes, entry.count));
        }
        copy_payload(block.memory().data(), entry.payload.data(), entry.payload.size());
      }
      incoming.emplace_back(entry, std::move(block));
    }
    const Lock lock(*this);
    for (auto& [entry, block] : incoming) {
      if (!is_closed_locked(from)) accept(from, entry, std::move(block));
    }
    flush_queued();
  } catch (const Error& error) {
    end_with_corrupt(from, error);
  }
  notify();
}

void P2pEndpoint::end_with_corrupt(int from, const Error& error) {
  const Lock lock(*this);
  const Ending ending{.kind = ErrorKind::corrupt_message, .rank = from, .detail = error.what()};
  table_.end(ending);
  outbox_.close(from, lost_entry(from, ending.detail));
  flush_queued();
  notify();
}

void P2pEndpoint::accept(int from, const Entry& entry, Block block) {
  switch (entry.kind) {
    case Entry::Kind::message: {
      const ByteView bytes = block.memory().first(entry.count);
      const std::uint64_t id = block.home() == arrivals_ ? 0 : landed;
      return table_.arrive(from, entry.key, {bytes, std::make_shared<Block>(std::move(block)), id});
    }
    case Entry::Kind::notice: {
      const Notice notice = notice_of(entry);
      // Answer, because neither rank ends before it has the other's last frame.
      if (notice.kind == Notice::Kind::departed) outbox_.finish(from, entry_of(notice));
      table_.apply(from, notice);
      if (notice.kind == Notice::Kind::waiting) outbox_.expedite(from);  // a deferred close, perhaps
      return;
    }
    case Entry::Kind::aborted:
      return end_aborted({.kind = static_cast<ErrorKind>(entry.count),
                          .group = entry.key,
                          .rank = entry.rank,
                          .detail = std::string(as_text(entry.payload))});
    case Entry::Kind::lost:
      if (entry.rank != rank()) return lose(std::array{entry.rank}, as_text(entry.payload));
      return given_up_by(from, as_text(entry.payload));
    case Entry::Kind::ask_status: {
      const Group* const group = table_.group(entry.key);
      const auto mine = std::make_shared<const Status>(group != nullptr ? slot(*group, group->rank).status : Status());
      const ByteView payload = std::as_bytes(std::span(mine.get(), 1));
      return outbox_.add(from, {.kind = Entry::Kind::status, .key = entry.key, .payload = payload, .hold = mine}, true);
    }
    case Entry::Kind::status: {
      const Group* const group = table_.group(entry.key);
      const int theirs = group != nullptr ? group->rank_of(from) : -1;
      if (theirs < 0 || !std::exchange(slot(*group, theirs).asked, std::nullopt)) return;
      slot(*group, theirs).status = Status::read(entry.payload);
      return;
    }
  }
}

// ---- ends

void P2pEndpoint::end_for_all(const Ending& ending) {
  // Perhaps only this rank has seen it.
  const Entry entry = entry_of(ending);
  for (int to = 0; to < size(); ++to) {
    if (to != rank() && !table_.is_gone(to)) outbox_.add(to, entry, true);
  }
  table_.end(ending);
}

void P2pEndpoint::lose(std::span<const int> peers, std::string_view why) {
  std::vector<Ending> endings;
  for (const int peer : peers) {
    if (peer == rank() || table_.is_gone(peer)) continue;
    endings.push_back(
        {.kind = ErrorKind::peer_lost, .rank = peer, .detail = std::string(cut_text(why, max_detail_bytes))});
    // Do this before the other ranks learn of it: if a rank of a lost host is alive, it must not consider another rank
    // of its host lost.
    outbox_.close(peer, lost_entry(peer, endings.back().detail));
  }
  for (const Ending& ending : endings) end_for_all(ending);
}

/// Handles a peer that considers this rank, which is alive, lost. This rank loses the peer; other ranks do not.
void P2pEndpoint::given_up_by(int peer, std::string_view why) {
  if (table_.is_gone(peer)) return;
  const auto detail = fmt::format("it has given up rank {}: {}", rank(), why);
  const Ending ending{
      .kind = ErrorKind::peer_lost, .rank = peer, .detail = std::string(cut_text(detail, max_detail_bytes))};
  outbox_.close(peer, lost_entry(peer, ending.detail));
  table_.end(ending);
}

/// Forwards the first abort of a group before this rank acts on it. This rank's frames may reach other ranks before
/// those of the rank that aborted, and they would then take this rank's leaving for the cause.
void P2pEndpoint::end_aborted(Ending ending) {
  if (table_.is_aborted(ending.group)) return;
  if (ending.group == 0) return end_for_all(std::move(ending));
  if (const Group* const group = table_.group(ending.group)) carry(*group, ending);
  table_.end(std::move(ending));
}

void P2pEndpoint::lost(std::span<const int> peers, std::string_view why) {
  const bool are_ranks = std::ranges::all_of(peers, [&](int peer) { return peer >= 0 && peer < size(); });
  if (!is_usable() || !are_ranks) return;
  const Lock lock(*this);
  lose(peers, why);
  notify();
}

bool P2pEndpoint::is_closed(int peer) {
  const std::lock_guard lock(mutex_);
  return is_closed_locked(peer);
}

bool P2pEndpoint::has_failed() {
  const std::lock_guard lock(mutex_);
  return ProcessFailure::exists() || table_.has_lost_peer();
}

bool P2pEndpoint::all_closed() {
  const std::lock_guard lock(mutex_);
  for (int peer = 0; peer < size(); ++peer) {
    if (!is_closed_locked(peer)) return false;
  }
  return true;
}

// ---- statuses

P2pEndpoint::Board& P2pEndpoint::board(const Group& group) {
  auto& board = boards_[group.key()];
  board.slots.resize(group.ranks.size());
  return board;
}

void P2pEndpoint::ask_status(Group& group, int rank) {
  auto& asked = slot(group, rank).asked;
  if (rank == group.rank || asked) return;
  asked = Clock::now();
  outbox_.add(group.endpoint_rank(rank), {.kind = Entry::Kind::ask_status, .key = group.key()}, true);
}

void P2pEndpoint::after_quiet(Group& group) {
  const Lock lock(*this);
  const auto now = Clock::now();
  if (now - board(group).asked < board_age_) return;
  board(group).asked = now;
  for (int rank = 0; rank < static_cast<int>(group.ranks.size()); ++rank) ask_status(group, rank);
}

void P2pEndpoint::post(Group& group, const Status& status) {
  expect_usable();
  const Lock lock(*this);
  check_locked(group);
  slot(group, group.rank).status = status;
}

Status P2pEndpoint::status(Group& group, int rank) {
  expect_usable();
  const Lock lock(*this);
  check_locked(group);
  ask_status(group, rank);
  Status status = last_status(group, rank);
  const auto& asked = slot(group, rank).asked;
  const auto unanswered =
      std::chrono::duration_cast<std::chrono::milliseconds>(asked ? Clock::now() - *asked : Duration{});
  status.unanswered_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(unanswered.count(), 0, 0xffff'ffff));
  return status;
}

}  // namespace

std::shared_ptr<Engine> make_engine(std::shared_ptr<Transport> transport, const Options& options) {
  const auto endpoint = std::make_shared<P2pEndpoint>(std::move(transport), std::make_shared<EventCount>(), options);
  auto engine = levada::make_engine(endpoint, "p2p");
  endpoint->start();
  return engine;
}

}  // namespace levada::p2p
