// One rank's place among the ranks of a host: its memory, its streams, who lives. What all its groups share.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/attendance.h"
#include "levada/engine/engine.h"
#include "levada/engine/shm/arena.h"
#include "levada/engine/shm/control.h"
#include "levada/engine/shm/limits.h"
#include "levada/engine/shm/memory.h"
#include "levada/engine/shm/private_views.h"
#include "levada/engine/shm/stream.h"
#include "levada/engine/shm/watcher.h"

namespace levada::shm {

/// The shared memory of a host's ranks as one of them has it mapped.
struct HostMemory {
  int rank = 0;
  int size = 1;
  std::shared_ptr<const Mapping> control;
  std::vector<std::shared_ptr<const Mapping>> data;  ///< each rank's; its own is writable
  /// Of which `data` are the mappings; may be null.
  std::shared_ptr<const std::vector<UniqueFd>> files{};
};

/// Any thread. Groups and channels are passed in by the engines and channels that own them. Lives as long as anything
/// that points into its memory: engines, channels, blocks, leases. Calls throw as Engine's do.
class Member final : public Block::Home, public std::enable_shared_from_this<Member> {
 public:
  /// This rank counts as alive when it returns.
  explicit Member(
      HostMemory memory, std::function<MemoryLimits()> limits = [] { return memory_limits(); });
  ~Member() override;
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// To be called once all ranks are alive: their deaths are looked out for from now on.
  void watch() { watcher_->watch(); }
  /// False in a forked child, where nothing of this may be used and all destructors do nothing.
  bool usable() const { return token_.mine(); }
  int rank() const { return rank_; }
  int size() const { return size_; }

  void enter(const GroupState& group);
  /// Closes the group's streams.
  void leave(Group& group) noexcept;
  /// Leaves all groups. Leases stay valid.
  void leave_all() noexcept;
  void abort(Group& group, std::string_view reason) noexcept;
  void check(Group& group);

  /// `from` and `to` are the host's ranks; this one is among them.
  std::shared_ptr<Stream> open(Group& group, std::uint64_t key, int from, std::vector<int> to, int window);
  void close_sender(Stream& stream) noexcept;
  void close_taker(Stream& stream) noexcept;

  std::optional<Block> try_allocate(Group& group, std::size_t bytes);
  bool try_publish(Group& group, const std::shared_ptr<Stream>& stream, Block& block, std::size_t bytes);
  Received try_receive(Group& group, Stream& stream);
  std::span<std::byte> make_private(const std::shared_ptr<Stream>& stream, Lease& lease);
  /// Takers by the host's numbers.
  std::vector<Engine::Holder> holders(Group& group, Stream& stream);

  /// The channels are StreamChannels of this group, of which this rank is a taker, or the sender.
  Woken wait(Group& group, const WaitFor& wanted, Deadline deadline);
  void wake();

  void post(Group& group, const Status& status);
  Status status(Group& group, int host_rank);

  /// Gives the memory of free blocks back to the system; how many bytes.
  std::uint64_t trim();
  /// Bytes of blocks that are out.
  std::uint64_t memory_in_use();

  void give_back(std::byte* data, std::size_t size) noexcept override;

 private:
  class Hold;
  class PrivateHold;
  class Announcement;

  // member.cc
  void expect_usable() const;
  void look();
  void look_once();
  void look(Group& group);
  void find_cause(Group& group) const;
  bool satisfied(Group& group, const WaitFor& wanted);

  // streams.cc
  void drain();
  void drain_from(int from);
  /// The sentence that says what is wrong with it; empty when it has been dealt with.
  std::string accept(int from, const Descriptor& descriptor);
  std::string accept_message(Stream& stream, int from, const Descriptor& descriptor);
  std::shared_ptr<Stream> stream_of(std::uint64_t key);
  void drop(int from, const Descriptor& descriptor);
  bool sender_over(const Stream& stream) const;
  bool taker_over(const Stream& stream, int taker) const;
  bool out_of(std::span<const std::uint64_t> groups, int rank) const;
  bool taken_by_all(const Stream& stream, const Stream::Sent& sent) const;
  void end_streams(const Group* group) noexcept;
  bool has_room(Stream& stream);
  void settle(Stream& stream);
  void notice(int to, const Descriptor& descriptor);
  void flush_notices();
  void push(int to, const Descriptor& descriptor);
  void close_sender_locked(Stream& stream) noexcept;
  void close_taker_locked(Stream& stream) noexcept;
  bool is_over(const Stream& stream) const;
  void forget_if_over(Stream& stream);
  void mark_corrupt(int from, std::string what);
  /// For threads that wait for room in the channel of that topic, or for memory.
  void wake_if_waiting_for_space(int rank, Topics topics) const;

  // blocks.cc
  std::uint32_t slot_of(const Block& block) const;
  bool can_allocate(std::size_t bytes);
  void sweep();
  bool returned_by_all(std::uint32_t slot);
  bool fill(const std::vector<Range>& fresh) const;
  std::uint64_t discard(const std::vector<Range>& ranges) const;

  // Unchanging.
  HostMemory memory_;
  Control control_;
  int rank_;
  int size_;
  ForkToken token_;
  std::unique_ptr<Watcher> watcher_;
  std::unique_ptr<PrivateViews> views_;

  mutable std::mutex mutex_;  // guards what follows
  Arena arena_;
  Budget budget_;
  Clock::time_point not_filled_until_{};  ///< the system gave no pages lately
  /// What a slot's block is out for.
  struct Use {
    std::uint32_t generation = 0;
    std::shared_ptr<Stream> stream;
  };
  std::vector<Use> uses_;  // by slot
  std::vector<std::uint32_t> in_flight_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Stream>> streams_;
  Attendance attendance_;
  std::vector<std::uint64_t> sent_;  // into each ring
  std::vector<std::uint64_t> received_;
  std::vector<std::vector<Descriptor>> unsent_;  // notices for which a ring had no room
  bool has_unsent_ = false;
  struct Peer {
    bool left = false;
    bool gone = false;  // left, or dead: holds nothing any more
    bool dead = false;
    std::string corrupt;  // what was wrong with what it sent
  };
  std::vector<Peer> peers_;
  std::uint32_t seen_alarm_ = 0;
  std::uint64_t news_seen_ = 1;  // grows with all that may end a group
};

}  // namespace levada::shm
