// Sends what comes in from other hosts on to the ranks of this one.
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
struct Port {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Channel> channel;
  explicit operator bool() const { return channel != nullptr; }
};

/// For a cause to reach the other engine, or another rank, which looks for it once a poll interval.
inline constexpr Duration grace = 10 * WaitFor::poll_interval;

/// Watches a leg that a forwarder sends on. One thread at a time.
class ForwarderWatch {
 public:
  /// Returns whether the forwarder has left without closing the leg, and nothing has explained that since: where it
  /// left because its group ended, the cause reaches this rank a moment later.
  bool is_lost(const Port& leg);
  /// Whether the forwarder has left, as is_lost() saw.
  bool has_left() const { return since_.has_value(); }

 private:
  std::optional<Clock::time_point> since_;
};

/// The status of this rank in one group, on the boards of both engines. A rank that forwards to a slow one has two:
/// what it does itself, and for whom its forwarding waits. The boards show the second if there is one. Any thread.
class StatusBoard {
 public:
  StatusBoard(std::weak_ptr<Engine> near, std::weak_ptr<Engine> far) : near_(std::move(near)), far_(std::move(far)) {}

  /// Throws as Engine::post() does.
  void post(const Status& status);
  /// `status`: for whom `forward` waits; nothing once it does not. Throws as Engine::post() does.
  void post_held(const void* forward, std::optional<Status> status);

 private:
  void show(const Status& status);

  const std::weak_ptr<Engine> near_, far_;  ///< none once this rank has left the group
  std::mutex mutex_;                        // guards what follows
  Status own_;
  const void* held_forward_ = nullptr;  ///< whose forwarding waits, as the boards show
};

/// Forwards the messages of one channel, one at a time and in order. One thread at a time.
class Forward {
 public:
  /// `near` or `outgoing` may be empty. What comes in has landed in blocks of `near`'s engine, as far as it had any.
  /// Both must be closed, so that nobody takes the end of forwarding for the end of the channel. `from` sends on the
  /// channel, and `to` get what is forwarded: ranks of the incoming port's engine.
  /// `near_ranks`: of the near engine's ranks, the numbers in the incoming port's engine.
  Forward(Port incoming, Port near, Port outgoing, int from, std::vector<int> to, std::vector<int> near_ranks,
          std::shared_ptr<StatusBoard> board);

  enum class State : std::uint8_t {
    idle,      ///< waits for a message or the end
    far_full,  ///< waits for room on the outgoing channel
    blocked,   ///< waits for room or memory on the near engine
    orphaned,  ///< the rank before it in a tree has left: fails unless something explains that soon
    ended,     ///< all messages have been forwarded, and the channels closed
    failed,    ///< a group has ended
  };
  /// Forwards what can be. Does not block.
  State advance();
  /// What advance() is blocked by, on near().
  struct Obstacle {
    Channel* full = nullptr;  ///< has no room
    std::size_t bytes = 0;    ///< or: there is no memory for so many
  };
  Obstacle obstacle() const;
  Engine& near() { return *near_.engine; }
  /// Once it has waited for `after`, posts which rank has not received what this one forwards, if that is another than
  /// this one, which posts for itself.
  void post_held(Duration after) noexcept;
  /// What a rank that leaves waits for, and for how long it has.
  std::string explain(Duration waited) const;
  /// Ends the groups for all their members. `why`: a clause that ends in "still forwards".
  void abort_leaving(std::string_view why) noexcept;

 private:
  void abort(std::string_view reason) noexcept;
  State try_advance();
  bool take_in();
  /// Returns the status of a rank that forwards to slower ones; nothing if none is slower than this one.
  std::optional<Status> held_status();
  void show_held(std::optional<Status> status) noexcept;
  /// Throws PeerLost where a forwarder before this one is lost.
  void expect_forwarder();
  bool put_near();

  Port incoming_, near_, outgoing_;
  ForwarderWatch before_;
  const int from_;
  const std::vector<int> to_, near_ranks_;
  const std::shared_ptr<StatusBoard> board_;
  std::optional<Clock::time_point> post_at_;  ///< while it waits: when to post that next
  bool is_held_ = false;                      ///< as posted
  Lease message_;                             ///< being forwarded; without bytes: none
  bool in_near_memory_ = false;
  bool near_is_due_ = false, outgoing_is_due_ = false;
  bool has_ended_ = false;
};

/// Tells whoever waits of changes of the far engine. Any thread.
class FarChanges {
 public:
  /// For the far engine's on_change().
  void notify();
  /// For the joined engine's.
  void set_hook(std::function<void()> hook);
  EventCount& count() { return count_; }

  /// While it exists, a change ends waits on `near` that stop at rung().
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
  std::mutex mutex_;  // guards what follows
  std::vector<Alarm*> alarms_;
  std::shared_ptr<const std::function<void()>> hook_;
};

/// The forwarding thread of a process. Any thread may call. All of the process's engines and channels share it.
class Relay {
 public:
  Relay(std::shared_ptr<FarChanges> changes, Options options)
      : changes_(std::move(changes)), options_(std::move(options)) {}
  /// Waits until all channels have been forwarded to their ends, as the options say; else ends their groups for all.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  FarChanges& changes() { return *changes_; }
  /// Says whether a group of this rank has ended for a cause, and none has been made since.
  void set_failed(bool has_failed) { has_failed_ = has_failed; }
  /// Starts the thread. Throws EngineError where the system refuses it.
  void add(std::unique_ptr<Forward> forward);

 private:
  void run();
  void wake();
  struct Unfinished {
    std::vector<Forward*> blocked;
    std::vector<Forward*> waiting;       ///< blocked, or for room on the outgoing channel
    Duration longest = Duration::max();  ///< until they are to be advanced again
  };
  Unfinished advance_all();
  /// Waits until one that is blocked may advance, or the far engine has changed since `seen`.
  void wait_near(const Unfinished& unfinished, std::uint64_t seen);
  /// Waits until all channels have ended. `lock` holds the mutex. Returns why it has stopped before, if it has.
  std::string wait_for_ends(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<FarChanges> changes_;
  const Options options_;
  const ForkToken token_;
  std::atomic<bool> has_failed_ = false;
  std::mutex mutex_;                              // guards what follows
  std::list<std::unique_ptr<Forward>> forwards_;  ///< removed by the thread alone
  std::unique_ptr<std::thread> thread_;
  bool stopping_ = false;
  std::condition_variable changed_;
};

}  // namespace levada::joined
