// One rank's place among the ranks of a host.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levada/base/memory_limits.h"
#include "levada/base/unique_fd.h"
#include "levada/engine/endpoint.h"
#include "levada/engine/shm/channel_state.h"
#include "levada/engine/shm/control.h"
#include "levada/engine/shm/memory.h"
#include "levada/engine/shm/private_views.h"
#include "levada/engine/shm/watcher.h"

namespace levada::shm {

/// The shared memory of a host's ranks as one of them has it mapped.
struct HostMemory {
  int rank = 0;
  int size = 1;
  std::shared_ptr<const Mapping> control;
  std::vector<std::shared_ptr<const Mapping>> data;  ///< each rank's; its own is writable
  /// The files that `data` maps; may be null.
  std::shared_ptr<const std::vector<UniqueFd>> files{};
};

struct EndpointOptions {
  std::function<MemoryLimits()> limits = [] { return memory_limits(); };
  Duration heartbeat = std::chrono::milliseconds(200);       ///< how often a sleeping thread checks what wakes nobody
  Duration watch_interval = std::chrono::milliseconds(500);  ///< how often the watcher does
};

class ShmEndpoint final : public levada::Endpoint {
 public:
  /// This rank counts as alive when it returns.
  explicit ShmEndpoint(HostMemory memory, EndpointOptions options = {});
  ~ShmEndpoint() override;

  /// To be called once all ranks are alive: their deaths are looked out for from now on.
  void watch() { watcher_->watch(); }

  bool shares_memory(int /*rank*/) const override { return true; }
  std::optional<std::uint64_t> position_of(ByteView bytes) const override;
  bool keep_pages(ByteView bytes) const override;
  std::optional<ByteView> view(int rank, std::uint64_t position, std::uint64_t bytes) const override;
  void post(Group& group, const Status& status) override;
  Status status(Group& group, int rank) override;
  std::span<std::byte> make_private(ChannelState& channel, Lease& lease) override;

 protected:
  void drain() override;
  void carry(const AddressedNotice& addressed) override;
  void carry(const Group& group, const Ending& ending) override;
  void collect_receipts(ChannelState& channel) override;
  bool has_room(ChannelState& channel) override;
  void send(ChannelState& channel, Message message) override;
  Received lease(ChannelState& channel, Arrival arrival) override;
  int num_leased(ChannelState& channel, const ChannelState::Receiver& receiver) override;
  void drop(int from, const Arrival& arrival) override;
  void reclaim() override;
  Status last_status(const Group& group, int rank) override;

  void check_forwarded(ByteView bytes) const override;

  void flush() noexcept override;
  void notify(const ChannelState* channel) noexcept override;
  Sleep begin_sleep(const WaitFor& wanted) override;
  void end_sleep(const Sleep& sleep) noexcept override;
  void observe(Sleep& sleep) override;
  bool sleep(const Sleep& sleep, Deadline deadline) override;
  void after_quiet(Group& /*group*/) override { control_.find_deaths(); }

 private:
  class LeaseState;
  class PrivateLeaseState;

  // With mutex_ held.
  void drain_rings();
  void drain_ring(int from);
  void accept(int from, const Descriptor& descriptor);
  void notice_ends();
  void mark_corrupt(int from, const std::string& what);
  void push(int to, const Descriptor& descriptor);
  void push_or_keep(int to, const Descriptor& descriptor);
  void push_kept();
  bool ring_has_room(int to);
  /// Gives back, for receivers that will not, the messages in these slots.
  void release_for_gone(const ChannelState& channel, std::uint32_t slot, std::uint32_t generation);
  /// To be rung by flush(), without mutex_.
  void ring_later(int rank, WakeMask mask);
  bool is_returned_by_all(std::uint32_t slot);

  // Without.
  bool is_forwarded(ByteView bytes) const;
  RankPage& page() const { return control_.page(rank()); }
  static int sole_sender(const WaitFor& wanted);
  Doorbell& doorbell_of(const Sleep& sleep) const;
  void count_sleeper(const Sleep& sleep) noexcept;
  /// For threads that wait for room in the channels of that mask, or for memory.
  void wake_for_space(int rank, WakeMask mask) const;
  RankPage::BoardSlot& board_of(std::uint64_t group);

  HostMemory memory_;
  Control control_;
  std::unique_ptr<Watcher> watcher_;
  std::unique_ptr<PrivateViews> views_;
  std::mutex post_mutex_;  ///< this rank's boards have one writer at a time
  static constexpr std::uint64_t not_quiet = ~std::uint64_t{0};
  std::atomic<std::uint64_t> quiet_alarm_ = not_quiet;  ///< the alarm at which nothing had ended yet
  std::atomic<bool> has_pending_ = false;               ///< something below is to be rung
  std::atomic<std::uint32_t> pending_mask_ = 0;         ///< of this rank's doorbell `sends`, to be rung by flush()
  std::atomic<bool> has_kept_ = false;  ///< written with mutex_; counted in wants_space: room in a ring wakes this rank
  std::vector<std::atomic<int>> bell_sleepers_;  ///< this process's threads, by the rank on whose `sends` they sleep
  std::atomic<int> num_bell_sleepers_ = 0;

  // Guarded by mutex_.
  std::vector<std::pair<int, WakeMask>> pending_wakes_;  ///< of other ranks' doorbells `own`
  struct Publication {
    std::uint32_t generation = 0;
    std::shared_ptr<ChannelState> channel;
    std::shared_ptr<const void> hold;  ///< of a lease that was published; else the block is the message's
  };
  std::vector<Publication> publications_;  ///< of each slot's block, the last one
  std::vector<std::uint32_t> in_flight_;
  std::vector<std::shared_ptr<const void>> released_;    ///< to be released without mutex_
  std::vector<std::uint64_t> num_pushed_, num_drained_;  ///< of each ring
  std::vector<std::vector<Descriptor>> kept_;            ///< notices for which a ring had no room
  std::size_t next_board_ = 0;                           ///< guarded by post_mutex_
  struct Peer {
    bool left = false;
    bool gone = false;  ///< left, or dead: it holds nothing any more
    bool dead = false;
    std::uint32_t num_aborts = 0;  ///< its records that have been read
  };
  std::vector<Peer> peers_;
  std::uint32_t seen_alarm_ = 0;
};

/// The engine of all ranks of the host. `endpoint` watches already, or will before the ranks use it.
std::shared_ptr<Engine> make_engine(std::shared_ptr<ShmEndpoint> endpoint);

}  // namespace levada::shm
