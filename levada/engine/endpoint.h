// One rank's place on one medium: what all groups that the rank is in share. What a channel means stands in
// ChannelTable; an endpoint only moves bytes and wakes sleepers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levada/engine/block_pool.h"
#include "levada/engine/channel_table.h"
#include "levada/engine/engine.h"
#include "levada/engine/event_count.h"
#include "levada/engine/fork_token.h"
#include "levada/engine/group.h"

namespace levada {

/// Engine::position_of() and view(), where `memory` is all memory of a rank's blocks.
std::optional<std::uint64_t> position_of(ByteView memory, ByteView bytes);
std::optional<ByteView> view_of(ByteView memory, std::uint64_t position, std::uint64_t bytes);

/// Any thread, except where a function says otherwise. Groups are passed in by the engines that own them. Functions
/// throw as Engine's do. Lives as long as anything that uses its memory: engines, channels, blocks, leases. In a forked
/// child every function throws EngineError, or does nothing where it is noexcept.
class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  struct Identity {
    std::string name;
    int rank = 0;
    std::vector<int> host_of;     ///< by rank
    int degree = default_degree;  ///< EngineInfo::degree
  };

  /// How a medium works.
  struct Traits {
    ChannelTable::Options channels{};
    /// How long a thread sleeps at most before it looks again at what wakes nobody. Duration::max(): only what the
    /// medium promises to wake it for does.
    Duration heartbeat = std::chrono::milliseconds(200);
  };

  virtual ~Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  const Identity& identity() const { return identity_; }
  int rank() const { return identity_.rank; }
  int size() const { return static_cast<int>(identity_.host_of.size()); }
  virtual bool shares_memory(int rank) const = 0;
  virtual std::optional<std::uint64_t> position_of(ByteView /*bytes*/) const { return std::nullopt; }
  /// Of this rank's own blocks; an endpoint that sees other ranks' memory overrides it.
  virtual bool keep_pages(ByteView bytes) const;
  virtual std::optional<ByteView> view(int /*rank*/, std::uint64_t /*position*/, std::uint64_t /*bytes*/) const {
    return std::nullopt;
  }

  /// `group` stays where it is until it has left.
  void enter(Group& group);
  /// With the last group that it is in, the rank departs.
  void leave(Group& group) noexcept;
  void abort(Group& group, std::string_view reason, ErrorKind kind) noexcept;
  void check(Group& group);
  std::optional<Cause> cause(Group& group);

  std::shared_ptr<ChannelState> open(Group& group, std::uint64_t key, int from, std::span<const int> to, int window,
                                     ChannelOptions options);
  void close(ChannelState& channel, End end) noexcept;
  /// The channel's destructor calls this.
  void release(ChannelState& channel) noexcept;
  bool try_publish(Group& group, ChannelState& channel, Block& block, std::size_t bytes);
  bool try_publish(Group& group, ChannelState& channel, const Lease& lease);
  Received try_receive(Group& group, ChannelState& channel);
  bool is_abandoned(ChannelState& channel);
  /// Ranks are the group's.
  std::vector<Engine::Holder> holders(Group& group, ChannelState& channel);

  std::optional<Block> try_allocate(Group& group, std::size_t bytes, BlockUse use);
  std::uint64_t memory_in_use();
  virtual std::uint64_t trim();

  /// `wanted` as Engine::wait() has checked it.
  Woken wait(Group& group, const WaitFor& wanted, Deadline deadline);
  void wake();
  void on_change(std::function<void()> hook);

  virtual void report_lost(int /*rank*/, std::string_view /*how*/) noexcept {}
  virtual void post(Group& group, const Status& status) = 0;
  virtual Status status(Group& group, int rank) = 0;
  void ask_statuses(Group& group);
  virtual std::span<std::byte> make_private(ChannelState& /*channel*/, Lease& /*lease*/) { return {}; }

 protected:
  /// `changed` is notified where a wait's conditions may have changed, also by `pool`; null for a medium that has
  /// another way to sleep.
  Endpoint(Identity identity, std::shared_ptr<EventCount> changed, std::shared_ptr<BlockPool> pool, Traits traits);

  // ---- what a medium does, with mutex_ held

  /// Delivers what has come into the table.
  virtual void drain() {}
  virtual void carry(const AddressedNotice& addressed) = 0;
  /// Notifies the members of the ending's group, of which this rank is one.
  virtual void carry(const Group& group, const Ending& ending) = 0;
  /// Updates Receiver::num_received where receivers send no receipts.
  virtual void collect_receipts(ChannelState& /*channel*/) {}
  /// Whether the window and the medium have room for one message more.
  virtual bool has_room(ChannelState& channel) { return table_.has_room(channel); }
  /// A message and what keeps its bytes: a block of this endpoint, or the hold of a lease.
  struct Message {
    ByteView bytes{};
    Block block{};
    std::shared_ptr<const void> hold{};
  };
  /// Sends a message to every receiver that is not over, this rank included.
  virtual void send(ChannelState& channel, Message message) = 0;
  /// Throws Unsupported for a message that this endpoint cannot send unless it is copied into a block.
  virtual void check_forwarded(ByteView /*bytes*/) const {}
  /// Makes what try_receive() returns; no message where it turns out to be corrupt, which the table then knows.
  virtual Received lease(ChannelState& channel, Arrival arrival) = 0;
  /// Leases that `receiver` is known to hold of what this rank has sent on the channel.
  virtual int num_leased(ChannelState& channel, const ChannelState::Receiver& receiver) = 0;
  /// Gives back what nobody will receive.
  virtual void drop(int /*from*/, const Arrival& /*arrival*/) {}
  /// Gives blocks back to the pool that all receivers have given back.
  virtual void reclaim() {}
  /// What status() returns, where that is known without asking; blank where it is not.
  virtual Status last_status(const Group& /*group*/, int /*rank*/) { return {}; }
  /// This rank has left the group. Others may still ask for its last status there, where that costs nothing to keep.
  virtual void forget_status(const Group& /*group*/) {}

  // ---- what a medium does, without mutex_

  /// After each call: sends what it has left to send.
  virtual void flush() noexcept {}
  /// Makes this process's sleepers check their conditions again. Unless `channel` is null, a medium may wake those
  /// alone that wait for it or for memory: shm does; inproc and p2p wake all.
  virtual void notify(const ChannelState* channel = nullptr) noexcept;
  /// One thread's sleep, from begin_sleep() to end_sleep().
  struct Sleep {
    std::uint64_t seen = 0;  ///< set by observe()
    int sender = -1;         ///< the fields from here on are for media
    std::uint32_t mask = 0;
    bool wants_space = false;
  };
  /// observe() comes before each drain_and_refresh at the conditions, sleep() after it. By default they sleep on
  /// `changed`.
  virtual Sleep begin_sleep(const WaitFor& /*wanted*/) { return {}; }
  virtual void end_sleep(const Sleep& /*sleep*/) noexcept {}
  virtual void observe(Sleep& sleep);
  /// Ends where anything has been notified since observe(), and perhaps for no reason. False once `deadline` has
  /// passed.
  virtual bool sleep(const Sleep& sleep, Deadline deadline);
  /// A sleep has passed in which nothing came.
  virtual void after_quiet(Group& /*group*/) {}

  // ---- for media

  void expect_usable() const;
  bool is_usable() const { return token_.valid(); }
  /// Holds mutex_, and calls flush() after unlocking it.
  class Lock {
   public:
    explicit Lock(Endpoint& endpoint) : endpoint_(endpoint), lock_(endpoint.mutex_) {}
    ~Lock() {
      lock_.unlock();
      endpoint_.flush();
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    Endpoint& endpoint_;
    std::unique_lock<std::mutex> lock_;
  };
  /// With mutex_ held: drains, and brings the group's cause up to date; check_locked() throws it.
  void drain_and_refresh(Group& group);
  void refresh(Group& group);
  void check_locked(Group& group);
  /// With mutex_ held: carries what the table has left to carry.
  void carry_all();

  const Identity identity_;
  const std::shared_ptr<EventCount> changed_;
  const std::shared_ptr<BlockPool> pool_;
  const ForkToken token_;
  std::atomic<bool> has_landings_ = false;  ///< open() has been given one
  mutable std::mutex mutex_;
  ChannelTable table_;  ///< guarded by mutex_

 private:
  bool is_ready(Group& group, const WaitFor& wanted);
  bool try_send(Group& group, ChannelState& channel, Block* block, ByteView bytes, std::shared_ptr<const void> hold);

  const Duration heartbeat_;
};

/// What Engine::open() returns on every engine over an endpoint.
class EndpointChannel final : public Channel {
 public:
  EndpointChannel(std::shared_ptr<Endpoint> endpoint, std::uint64_t group, std::shared_ptr<ChannelState> state,
                  int from, std::vector<int> to, int window)
      : Channel(endpoint.get(), from, std::move(to), window),
        endpoint_(std::move(endpoint)),
        group_(group),
        state_(std::move(state)) {}
  ~EndpointChannel() override { endpoint_->release(*state_); }

  std::uint64_t group() const { return group_; }
  ChannelState& state() const { return *state_; }

 private:
  std::shared_ptr<Endpoint> endpoint_;
  std::uint64_t group_;
  std::shared_ptr<ChannelState> state_;
};

}  // namespace levada
