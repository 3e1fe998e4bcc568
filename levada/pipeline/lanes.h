// The threads that pull at one graph's streams, and how they wait for each other: so that a circle of them is seen.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

namespace levada::pipeline {

/// Thrown out of a wait whose lane has been told to stop. No std::exception: no stage's function has failed.
struct Stopped {};

/// A thread at work on a graph: the caller's, and one a Prefetch.
class Lane {
 public:
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
  std::condition_variable wakeup_;
  std::atomic<bool> waiting_{false}, stopped_{false};
  const std::function<Lane*()>* blocker_ = nullptr;
  bool may_fail_ = false;
  int needed_ = 0;  ///< of its own thread
};

/// A place in a graph that one lane at a time pulls from: behind a fork that of any of its branches.
struct Seat {
  std::shared_ptr<Lane> own;  ///< null behind a fork
  std::atomic<Lane*> lane{own.get()};
};
using SeatPtr = std::shared_ptr<Seat>;

inline SeatPtr new_lane() {
  return SeatPtr(new Seat{.own = std::make_shared<Lane>()});
}

/// All lanes of one graph. Any thread may call.
class Lanes {
 public:
  /// Blocks the thread of `lane` until `blocker` gives null; before, it gives the lane that is waited for. It is asked
  /// again after each wake(lane), and must read nothing but atomics. False: all in a circle of lanes wait for the next,
  /// so that nobody could move; only where `may_fail`. Throws Stopped.
  bool wait(Lane& lane, const std::function<Lane*()>& blocker, bool may_fail);
  /// To be called after what `lane` may be waiting for has changed.
  void wake(Lane& lane);
  /// Ends the waits of `lane`, that under way and those to come.
  void stop(Lane& lane);

 private:
  bool in_circle(Lane& lane);

  std::mutex mutex_;
};

}  // namespace levada::pipeline
