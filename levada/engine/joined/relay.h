// Forwards messages that arrive from other hosts to the ranks of this one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/engine/engine.h"
#include "levada/engine/event_count.h"
#include "levada/engine/fork_token.h"
#include "levada/engine/joined/joined.h"

namespace levada::joined {

/// One end of a channel and the engine that opened it.
struct EndpointRef {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Channel> channel;
  explicit operator bool() const { return channel != nullptr; }
};

/// Time allowed for a cause to reach the other engine, or another rank, which polls for it once per poll interval.
inline constexpr Duration grace = 10 * WaitFor::poll_interval;

/// Watches a hop on which a forwarder sends. Used by one thread at a time.
class ForwarderWatch {
 public:
  /// Returns whether the forwarder has left without closing the hop and no cause has explained this within `grace`. If
  /// it left because its group ended, the cause reaches this rank a moment later.
  bool is_lost(const EndpointRef& endpoint);
  /// Returns whether is_lost() has seen the forwarder leave.
  bool has_left() const { return since_.has_value(); }

 private:
  std::optional<Clock::time_point> since_;
};

/// Posts this rank's status in one group on both engines. A rank that forwards to a slow rank has two statuses: its own
/// operation, and its wait for the slow rank. If it has the second, that one is posted. Thread-safe.
class StatusBoard {
 public:
  StatusBoard(std::weak_ptr<Engine> near, std::weak_ptr<Engine> far) : near_(std::move(near)), far_(std::move(far)) {}

  /// Throws as Engine::post() does.
  void post(const Status& status);
  /// Posts `status`, the wait of `forward` for another rank, or withdraws it if `status` is empty. Throws as
  /// Engine::post() does.
  void post_held(const void* forward, std::optional<Status> status);

 private:
  void show(const Status& status);

  const std::weak_ptr<Engine> near_, far_;  ///< expired once this rank has left the group
  std::mutex mutex_;                        // guards the members below
  Status own_;
  const void* held_forward_ = nullptr;  ///< the forward whose wait is posted
};

/// Forwards the messages of one channel, one at a time and in order. Used by one thread at a time.
class Forward {
 public:
  /// `near` or `outgoing` may be empty. Incoming messages are in blocks of `near`'s engine if it had blocks for them.
  /// Both channels must be closed explicitly, so that a receiver does not mistake the end of forwarding for the end of
  /// the channel. `from` sends on the channel, and `to` receive the forwarded messages; both are ranks of the incoming
  /// endpoint's engine. `near_ranks`: by rank of the near engine, the rank in the incoming endpoint's engine.
  Forward(EndpointRef incoming, EndpointRef near, EndpointRef outgoing, int from, std::vector<int> to,
          std::vector<int> near_ranks, std::shared_ptr<StatusBoard> board);

  enum class State : std::uint8_t {
    idle,      ///< waiting for a message or the end
    far_full,  ///< waiting for room on the outgoing channel
    blocked,   ///< waiting for room or memory on the near engine
    orphaned,  ///< the previous forwarder in a tree has left: fails unless a cause explains this soon
    ended,     ///< all messages have been forwarded, and the channels closed
    failed,    ///< a group has ended
  };
  /// Forwards as much as possible. Does not block.
  State advance();
  /// The resource of near() that advance() lacks.
  struct Obstacle {
    Channel* full = nullptr;  ///< channel without room, or null
    std::size_t bytes = 0;    ///< otherwise, the size for which memory is lacking
  };
  Obstacle obstacle() const;
  Engine& near() { return *near_.engine; }
  /// Once the forward has waited for `after`, posts which other rank has not received what this rank forwards. Does not
  /// post a wait for this rank itself.
  void post_held(Duration after) noexcept;
  /// Describes what a leaving rank is waiting for, and how long it has waited.
  std::string explain(Duration waited) const;
  /// Ends the forward's groups for all their members. `why` is a clause that ends with "still forwards" or "still
  /// forwarded".
  void abort_leaving(std::string_view why) noexcept;

 private:
  void abort(std::string_view reason) noexcept;
  State try_advance();
  bool receive();
  /// Returns the status to post while slower ranks hold up the forward, or nothing if no rank is slower than this one.
  std::optional<Status> held_status();
  void show_held(std::optional<Status> status) noexcept;
  /// Throws PeerLost if the previous forwarder is lost.
  void check_forwarder();
  bool publish_near();

  EndpointRef incoming_, near_, outgoing_;
  ForwarderWatch before_;
  const int from_;
  const std::vector<int> to_, near_ranks_;
  const std::shared_ptr<StatusBoard> board_;
  std::optional<Clock::time_point> post_at_;  ///< time to post the wait next, as long as it lasts
  bool is_held_ = false;                      ///< whether the wait is posted
  Lease message_;                             ///< message being forwarded; without bytes if there is none
  bool in_near_memory_ = false;
  bool near_is_due_ = false, outgoing_is_due_ = false;
  bool has_ended_ = false;
};

/// Notifies waiting threads of changes in the far engine. Thread-safe.
class FarChanges {
 public:
  /// Reports a change. The far engine's on_change() hook.
  void notify();
  /// Sets the hook of the joined engine.
  void set_hook(std::function<void()> hook);
  EventCount& count() { return count_; }

  /// While an Alarm exists, a change ends waits on `near` that use rung() as their stop flag.
  class Alarm {
   public:
    Alarm(FarChanges& changes, Engine& near);
    ~Alarm();
    Alarm(const Alarm&) = delete;
    Alarm& operator=(const Alarm&) = delete;
    const std::atomic<bool>& rung() const { return rung_; }
    void reset() { rung_ = false; }

   private:
    friend FarChanges;
    FarChanges& changes_;
    Engine& near_;
    std::atomic<bool> rung_ = false;
  };
  /// Rings all alarms.
  void ring();

 private:
  EventCount count_;
  std::atomic<bool> has_alarms_ = false;
  std::mutex mutex_;  // guards the members below
  std::vector<Alarm*> alarms_;
  std::shared_ptr<const std::function<void()>> hook_;
};

/// The forwarding thread of a process, shared by all its engines and channels. Thread-safe.
class Relay {
 public:
  Relay(std::shared_ptr<FarChanges> changes, Options options)
      : changes_(std::move(changes)), options_(std::move(options)) {}
  /// Waits until all channels have been forwarded completely, within the limits of the options. Then ends the groups of
  /// the remaining channels for all their members.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  FarChanges& changes() { return *changes_; }
  /// Adds a channel to forward. Starts the thread if needed; throws EngineError if the system refuses it.
  void add(std::unique_ptr<Forward> forward);

 private:
  void run();
  void wake();
  struct PendingForwards {
    std::vector<Forward*> blocked;
    std::vector<Forward*> waiting;       ///< blocked, or waiting for room on the outgoing channel
    Duration longest = Duration::max();  ///< maximum time until one must be advanced again
  };
  PendingForwards advance_all();
  /// Waits until a blocked forward may advance, or the far engine has changed since `seen`.
  void wait_near(const PendingForwards& unfinished, std::uint64_t seen);
  /// Waits until all channels have ended. `lock` holds the mutex. Returns why the wait ended early, or an empty text.
  std::string wait_for_ends(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<FarChanges> changes_;
  const Options options_;
  const ForkToken token_;
  std::mutex mutex_;                              // guards the members below
  std::list<std::unique_ptr<Forward>> forwards_;  ///< removed only by the thread
  std::unique_ptr<std::thread> thread_;
  bool stopping_ = false;
  std::condition_variable changed_;
};

}  // namespace levada::joined
