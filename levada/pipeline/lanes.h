// The threads that pull at one graph's streams, and how they wait for each other: so that a circle of them is seen.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace levada::pipeline {

/// Thrown out of a wait whose lane has been told to stop. No std::exception: no stage's function has failed.
struct Stopped {};

class Lane;
using LanePtr = std::shared_ptr<Lane>;
/// Whom a lane waits for; null: it need not wait any more.
using Blocker = std::function<LanePtr()>;

/// A thread at work on a graph: the caller's, and one a Prefetch.
class Lane {
 public:
  /// Of a thread that a Prefetch has begun; null on the caller's.
  static const Lane* of_this_thread();
  /// While it lives this thread is that lane's.
  class OnThisThread {
   public:
    explicit OnThisThread(const Lane& lane);
    ~OnThisThread();
    OnThisThread(const OnThisThread&) = delete;
    OnThisThread& operator=(const OnThisThread&) = delete;
  };

  bool waiting() const { return waiting_; }
  bool stopped() const { return stopped_; }
  /// Asked by its own thread: stopped, and none keeps it from that.
  bool must_stop() const { return stopped_ && needed_ == 0; }

  /// While one lives the lane is not stopped: it makes an item that others want too.
  class Unstoppable {
   public:
    explicit Unstoppable(Lane& lane) : lane_(lane) { ++lane_.needed_; }
    ~Unstoppable() { --lane_.needed_; }
    Unstoppable(const Unstoppable&) = delete;
    Unstoppable& operator=(const Unstoppable&) = delete;

   private:
    Lane& lane_;
  };

 private:
  friend class Lanes;
  class Waiting;
  std::condition_variable wakeup_;
  std::atomic<bool> waiting_{false}, stopped_{false};
  const Blocker* blocker_ = nullptr;
  bool may_fail_ = false;
  int needed_ = 0;  ///< of its own thread
};

/// A place in a graph that one lane at a time pulls from: behind a fork that of any of its branches. Any thread may
/// ask.
class Seat {
 public:
  explicit Seat(LanePtr lane = nullptr) : lane_(std::move(lane)) {}
  LanePtr lane() const {
    const std::lock_guard lock(mutex_);
    return lane_;
  }
  void take(LanePtr lane) {
    const std::lock_guard lock(mutex_);
    lane_ = std::move(lane);
  }

 private:
  mutable std::mutex mutex_;
  LanePtr lane_;
};
using SeatPtr = std::shared_ptr<Seat>;

/// All lanes of one graph. Any thread may call.
class Lanes {
 public:
  /// `poll`: called now and then while the caller's thread waits; what it throws ends the wait. May be empty.
  explicit Lanes(std::function<void()> poll = {}) : poll_(std::move(poll)) {}

  /// Blocks the thread of `lane` until `blocker` gives null. It is asked again after each wake(lane), and must depend
  /// on nothing but atomics and seats. False: all in a circle of lanes wait for the next, so that nobody could move;
  /// only where `may_fail`. Throws Stopped.
  bool wait(Lane& lane, const Blocker& blocker, bool may_fail);
  /// To be called after what `lane` may be waiting for has changed. Null: nobody has taken the seat yet.
  void wake(const LanePtr& lane);
  /// Ends the waits of `lane`, that under way and those to come.
  void stop(Lane& lane);

 private:
  bool in_circle(Lane& lane);
  void sleep(Lane& lane, std::unique_lock<std::mutex>& lock);

  std::function<void()> poll_;
  std::mutex mutex_;
};

}  // namespace levada::pipeline
