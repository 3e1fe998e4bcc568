// One rank's place on a wire: its memory, its streams, who is there. What all its groups share.
#pragma once

#include <sys/types.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "levada/engine/attendance.h"
#include "levada/engine/block_pool.h"
#include "levada/engine/event_count.h"
#include "levada/engine/p2p/frame.h"
#include "levada/engine/p2p/group.h"
#include "levada/engine/p2p/p2p.h"
#include "levada/engine/p2p/stream.h"

namespace levada::p2p {

/// Any thread. Groups and streams are passed in by the engines and channels that own them. Calls throw as Engine's do.
/// Whatever a call has to tell other ranks goes to the outbox under the mutex, and to the wire without it.
class Member final : public Receiver {
 public:
  Member(std::shared_ptr<Wire> wire, const Options& options);

  int rank() const { return rank_; }
  int size() const { return size_; }
  Wire& wire() const { return *wire_; }
  /// False in a forked child, where nothing of this may be used and all destructors do nothing.
  bool usable() const;

  /// The group stays where it is until leave().
  void enter(Group& group);
  /// Closes the group's streams.
  void leave(Group& group) noexcept;
  /// Leaves all groups and says goodbye to everybody, who answers in kind; then all are out.
  void leave_all() noexcept;
  void abort(Group& group, std::string_view reason) noexcept;
  void check(Group& group);

  std::shared_ptr<Stream> open(Group& group, std::uint64_t key, Stream::Terms terms);
  void close_sender(Stream& stream) noexcept;
  void close_taker(Stream& stream) noexcept;

  std::optional<Block> try_allocate(Group& group, std::size_t bytes);
  bool try_publish(Group& group, Stream& stream, Block& block, std::size_t bytes);
  Received try_receive(Group& group, Stream& stream);
  /// Takers by the wire's numbers.
  std::vector<Engine::Holder> holders(Group& group, Stream& stream);

  struct Wanted {
    std::vector<Stream*> take;
    std::vector<Stream*> publish;
  };
  /// `streams`: of the conditions' channels.
  Woken wait(Group& group, const WaitFor& conditions, const Wanted& streams, Deadline deadline);
  void wake();

  void post(Group& group, const Status& status);
  /// What is known of it; asks for what has become of it since.
  Status status(Group& group, int rank);
  std::uint64_t memory_in_use() const { return memory_->taken(); }
  std::uint64_t trim() { return memory_->trim() + arrivals_->trim(); }

  // Receiver
  Block room_for_body(int from, ByteView head) override;
  void deliver(int from, ByteView head, Block body) override;
  void lost(int peer, std::string_view why) override;
  bool is_out(int peer) override;
  bool all_are_out() override;
  void send_late() override;

 private:
  struct Outgoing {
    Frame frame;                          ///< with one head
    std::optional<std::uint64_t> credit;  ///< of this channel, and nothing else
  };
  /// Whether somebody may wait for what is said, or it can go with the next frame to the same peer, or a little later.
  enum class When : std::uint8_t { now, late };
  struct Peer {
    bool left = false;  ///< its last frame has come
    bool dead = false;  ///< lost, or what it sends cannot be understood
    bool told = false;  ///< the last frame to it has been sent
    std::deque<Outgoing> outbox;
    bool due = false;  ///< what is in there is on its way to the wire
    bool is_out() const { return left || dead; }
  };
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  // member.cc; what ends in _locked is called with the mutex held
  void expect_usable() const;
  void look_locked(Group& group);
  void check_locked(Group& group);
  void end_locked(End end);
  void lose_locked(int rank, std::string_view why);
  bool satisfied(Group& group, const WaitFor& conditions, const Wanted& streams);
  void ask_board(Group& group);
  void ask_locked(Group& group, int rank);
  void answer_locked(int from, std::uint64_t key);
  void hear_status_locked(int from, const Head& head);
  void tell_locked(int to, const Head& head, When when = When::now);
  void tell_taken_locked(Stream& stream);
  void enqueue_locked(int to, Outgoing outgoing, When when);
  void make_due_locked(int to);
  Frame next_frame_locked(Peer& peer);
  void ask_for_room(const std::vector<Stream*>& streams);
  void say_goodbye_locked(int to);
  /// Hands the outbox over to the wire, unless another thread is at it, which then sends this thread's frames, too.
  void flush() noexcept;

  // streams.cc
  void accept_locked(int from, const Head& head, Block body);
  void accept_message_locked(int from, const Head& head, Block body);
  void accept_taker_closed_locked(int from, std::uint64_t key);
  void accept_taken_locked(int from, const Head& head);
  void accept_waiting_locked(int from, std::uint64_t key);
  Block copy_of_locked(ByteView bytes);
  /// The stream on which `from` speaks as its sender.
  Stream& stream_from_locked(int from, std::uint64_t key);
  std::shared_ptr<Stream> stream_of_locked(std::uint64_t key);
  void send_locked(Stream& stream, const Arrived& message);
  void close_sender_locked(Stream& stream);
  void close_taker_locked(Stream& stream);
  void end_streams_locked(const Group* group);
  void forget_over_locked();
  bool out_of(const Stream& stream, int rank) const;
  bool sender_over(const Stream& stream) const;
  bool taker_over(const Stream& stream, const Stream::Taker& taker) const;
  bool has_room(const Stream& stream) const;
  bool is_over(const Stream& stream) const;

  // Unchanging.
  const std::shared_ptr<Wire> wire_;
  const int rank_;
  const int size_;
  const pid_t process_;
  const std::shared_ptr<EventCount> changed_;
  EventCount late_added_;                      ///< notified where something has been left for send_late()
  const std::shared_ptr<BlockPool> memory_;    ///< of what this rank sends
  const std::shared_ptr<BlockPool> arrivals_;  ///< of what comes, which windows bound

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<std::uint64_t, std::shared_ptr<Stream>> streams_;
  Attendance attendance_;
  std::vector<End> ends_;
  std::vector<Peer> peers_;                           // by rank
  std::unordered_map<std::uint64_t, Group*> groups_;  // those that this rank is in
  Clock::time_point board_asked_{};
  std::deque<int> due_;  ///< peers whose outboxes are to be sent
  bool flushing_ = false;
  bool has_late_ = false;  ///< what is in other peers' outboxes
};

}  // namespace levada::p2p
