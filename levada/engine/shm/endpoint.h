// One rank's endpoint among the ranks of a host.
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

/// One rank's mappings of the shared memory of a host's ranks.
struct HostMemory {
  int rank = 0;
  int size = 1;
  std::shared_ptr<const Mapping> control;
  std::vector<std::shared_ptr<const Mapping>> data;  ///< each rank's memory; only this rank's is writable
  /// The files that `data` maps; may be null.
  std::shared_ptr<const std::vector<UniqueFd>> files{};
};

struct EndpointOptions {
  std::function<MemoryLimits()> limits = [] { return memory_limits(); };
  Duration heartbeat = std::chrono::milliseconds(200);       ///< how often a sleeper checks for silent changes
  Duration watch_interval = std::chrono::milliseconds(500);  ///< how often the watcher checks
};

class ShmEndpoint final : public levada::Endpoint {
 public:
  /// Returns once this rank counts as alive.
  explicit ShmEndpoint(HostMemory memory, EndpointOptions options = {});
  ~ShmEndpoint() override;

  /// Starts watching for deaths. Call it once all ranks are alive.
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
  /// Returns the message in this slot on behalf of receivers that are gone.
  void release_for_gone(const ChannelState& channel, std::uint32_t slot, std::uint32_t generation);
  /// Makes flush() ring the rank's doorbell, without holding mutex_.
  void ring_later(int rank, WakeMask mask);
  bool is_returned_by_all(std::uint32_t slot);

  // Without mutex_.
  bool is_forwarded(ByteView bytes) const;
  RankPage& page() const { return control_.page(rank()); }
  static int sole_sender(const WaitFor& wanted);
  Doorbell& doorbell_of(const Sleep& sleep) const;
  void count_sleeper(const Sleep& sleep) noexcept;
  /// Wakes threads that wait for room in the channels of `mask`, or for memory.
  void wake_for_space(int rank, WakeMask mask) const;
  RankPage::BoardSlot& board_of(std::uint64_t group);

  HostMemory memory_;
  Control control_;
  std::unique_ptr<Watcher> watcher_;
  std::unique_ptr<PrivateViews> views_;
  std::mutex post_mutex_;  ///< serializes writes to this rank's boards
  static constexpr std::uint64_t not_quiet = ~std::uint64_t{0};
  std::atomic<std::uint64_t> quiet_alarm_ = not_quiet;  ///< value of the alarm at which no group had ended yet
  std::atomic<bool> has_pending_ = false;               ///< whether flush() has something to ring or release
  std::atomic<std::uint32_t> pending_mask_ = 0;         ///< mask with which flush() rings this rank's doorbell `sends`
  std::atomic<bool> has_kept_ = false;  ///< written with mutex_; counted in wants_space: room in a ring wakes this rank
  std::vector<std::atomic<int>> bell_sleepers_;  ///< this process's threads, by the rank on whose `sends` they sleep
  std::atomic<int> num_bell_sleepers_ = 0;

  // Guarded by mutex_.
  std::vector<std::pair<int, WakeMask>> pending_wakes_;  ///< other ranks' doorbells `own`
  struct Publication {
    std::uint32_t generation = 0;
    std::shared_ptr<ChannelState> channel;
    std::shared_ptr<const void> hold;  ///< hold of a published lease; otherwise the message owns the block
  };
  std::vector<Publication> publications_;  ///< last publication of each slot's block
  std::vector<std::uint32_t> in_flight_;
  std::vector<std::shared_ptr<const void>> released_;    ///< to be released without mutex_
  std::vector<std::uint64_t> num_pushed_, num_drained_;  ///< one count for each ring
  std::vector<std::vector<Descriptor>> kept_;            ///< notices that did not fit into a ring
  std::size_t next_board_ = 0;                           ///< guarded by post_mutex_
  struct Peer {
    bool left = false;
    bool gone = false;  ///< left or dead, so it holds no messages
    bool dead = false;
    std::uint32_t num_aborts = 0;  ///< number of its records that have been read
  };
  std::vector<Peer> peers_;
  std::uint32_t seen_alarm_ = 0;
};

/// Returns the engine over all ranks of the host. ShmEndpoint::watch() must be called before the ranks use the engine.
std::shared_ptr<Engine> make_engine(std::shared_ptr<ShmEndpoint> endpoint);

}  // namespace levada::shm
