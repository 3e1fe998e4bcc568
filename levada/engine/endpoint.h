// One rank's endpoint on one medium, shared by all groups that the rank is in. ChannelTable defines what a channel
// means; an endpoint only moves bytes and wakes sleeping threads.
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

/// Implement Engine::position_of() and view(). `memory` is the whole memory of a rank's blocks.
std::optional<std::uint64_t> position_of(ByteView memory, ByteView bytes);
std::optional<ByteView> view_of(ByteView memory, std::uint64_t position, std::uint64_t bytes);

/// Thread-safe unless a function's comment says otherwise. The engines that own the groups pass them in. Functions
/// throw what Engine's do. Lives as long as anything that uses its memory: engines, channels, blocks, leases. In a
/// forked child, every function throws EngineError, or does nothing if it is noexcept.
class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  struct Identity {
    std::string name;
    int rank = 0;
    std::vector<int> host_of;     ///< indexed by rank
    int degree = default_degree;  ///< EngineInfo::degree
  };

  /// Properties of a medium.
  struct Traits {
    ChannelTable::Options channels{};
    /// Maximum sleep before a thread checks again for changes that wake no thread. Duration::max() if the medium wakes
    /// threads for every change.
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
  /// Handles only this rank's blocks. An endpoint that maps other ranks' memory overrides it.
  virtual bool keep_pages(ByteView bytes) const;
  virtual std::optional<ByteView> view(int /*rank*/, std::uint64_t /*position*/, std::uint64_t /*bytes*/) const {
    return std::nullopt;
  }

  /// Enters the group. `group` must not move until leave().
  void enter(Group& group);
  /// Leaves the group. When the rank leaves its last group, it departs.
  void leave(Group& group) noexcept;
  void abort(Group& group, std::string_view reason, ErrorKind kind) noexcept;
  void check(Group& group);
  std::optional<Cause> cause(Group& group);

  std::shared_ptr<ChannelState> open(Group& group, std::uint64_t key, int from, std::span<const int> to, int window,
                                     ChannelOptions options);
  void close(ChannelState& channel, End end) noexcept;
  /// Called by the channel's destructor.
  void release(ChannelState& channel) noexcept;
  bool try_publish(Group& group, ChannelState& channel, Block& block, std::size_t bytes);
  bool try_publish(Group& group, ChannelState& channel, const Lease& lease);
  Received try_receive(Group& group, ChannelState& channel);
  bool is_abandoned(ChannelState& channel);
  /// Ranks are in the group's numbering.
  std::vector<Engine::Holder> holders(Group& group, ChannelState& channel);

  std::optional<Block> try_allocate(Group& group, std::size_t bytes, BlockUse use);
  std::uint64_t memory_in_use();
  virtual std::uint64_t trim();

  /// Engine::wait() has already checked `wanted`.
  Woken wait(Group& group, const WaitFor& wanted, Deadline deadline);
  void wake();
  void on_change(std::function<void()> hook);

  virtual void report_lost(int /*rank*/, std::string_view /*how*/) noexcept {}
  virtual void post(Group& group, const Status& status) = 0;
  virtual Status status(Group& group, int rank) = 0;
  void ask_statuses(Group& group);
  virtual std::span<std::byte> make_private(ChannelState& /*channel*/, Lease& /*lease*/) { return {}; }

 protected:
  /// `changed` is notified, also by `pool`, when a condition of a wait may have changed. Null for a medium whose
  /// threads sleep in another way.
  Endpoint(Identity identity, std::shared_ptr<EventCount> changed, std::shared_ptr<BlockPool> pool, Traits traits);

  // ---- implemented by a medium, called with mutex_ held

  /// Delivers everything that has arrived to the table.
  virtual void drain() {}
  virtual void carry(const AddressedNotice& addressed) = 0;
  /// Notifies the members of the ending's group, which includes this rank.
  virtual void carry(const Group& group, const Ending& ending) = 0;
  /// Updates Receiver::num_received if receivers send no receipts.
  virtual void collect_receipts(ChannelState& /*channel*/) {}
  /// Returns whether the window and the medium have room for one more message.
  virtual bool has_room(ChannelState& channel) { return table_.has_room(channel); }
  /// A message and the owner of its bytes: a block of this endpoint, or the hold of a lease.
  struct Message {
    ByteView bytes{};
    Block block{};
    std::shared_ptr<const void> hold{};
  };
  /// Sends a message to every receiver that can still receive it, including this rank.
  virtual void send(ChannelState& channel, Message message) = 0;
  /// Throws Unsupported for a message that this endpoint can send only after copying it into a block.
  virtual void check_forwarded(ByteView /*bytes*/) const {}
  /// Returns the result of try_receive(). If the message turns out to be corrupt, reports that to the table and returns
  /// no message.
  virtual Received lease(ChannelState& channel, Arrival arrival) = 0;
  /// Returns the number of leases that `receiver` is known to hold on messages that this rank sent on the channel.
  virtual int num_leased(ChannelState& channel, const ChannelState::Receiver& receiver) = 0;
  /// Releases a message that no rank will receive, so that its sender can reuse the memory.
  virtual void drop(int /*from*/, const Arrival& /*arrival*/) {}
  /// Moves blocks back to the pool once all receivers have released them.
  virtual void reclaim() {}
  /// Returns the result of status() if it is known without asking; otherwise a blank Status.
  virtual Status last_status(const Group& /*group*/, int /*rank*/) { return {}; }
  /// Called when this rank has left the group. The medium may keep the rank's last status in the group for other ranks
  /// to read, if that costs nothing.
  virtual void forget_status(const Group& /*group*/) {}

  // ---- implemented by a medium, called without mutex_

  /// Called at the end of each call. Sends whatever has not been sent yet.
  virtual void flush() noexcept {}
  /// Wakes this process's sleeping threads to recheck their conditions. If `channel` is not null, a medium may wake
  /// only threads that wait for that channel or for memory. shm does; inproc and p2p wake all.
  virtual void notify(const ChannelState* channel = nullptr) noexcept;
  /// One thread's sleep, from begin_sleep() to end_sleep().
  struct Sleep {
    std::uint64_t seen = 0;  ///< set by observe()
    int sender = -1;         ///< this and the following fields are for media
    std::uint32_t mask = 0;
    bool wants_space = false;
  };
  /// A check of the conditions calls observe(), drain_and_refresh() and then sleep(). By default, threads sleep on
  /// `changed`.
  virtual Sleep begin_sleep(const WaitFor& /*wanted*/) { return {}; }
  virtual void end_sleep(const Sleep& /*sleep*/) noexcept {}
  virtual void observe(Sleep& sleep);
  /// Returns true after a notification since observe(), or spuriously; false once `deadline` has passed.
  virtual bool sleep(const Sleep& sleep, Deadline deadline);
  /// Called after a sleep in which nothing arrived.
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
  /// Drains and updates the group's cause. check_locked() also throws the cause. Requires mutex_.
  void drain_and_refresh(Group& group);
  void refresh(Group& group);
  void check_locked(Group& group);
  /// Carries all notices, endings and dropped messages that the table has queued. Requires mutex_.
  void flush_queued();

  const Identity identity_;
  const std::shared_ptr<EventCount> changed_;
  const std::shared_ptr<BlockPool> pool_;
  const ForkToken token_;
  std::atomic<bool> has_landings_ = false;  ///< whether open() was ever passed a landing
  mutable std::mutex mutex_;
  ChannelTable table_;  ///< guarded by mutex_

 private:
  bool is_ready(Group& group, const WaitFor& wanted);
  bool try_send(Group& group, ChannelState& channel, Block* block, ByteView bytes, std::shared_ptr<const void> hold);

  const Duration heartbeat_;
};

/// The Channel of every engine over an endpoint.
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
