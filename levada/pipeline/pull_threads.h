// The threads that pull at one graph's streams, and how they wait for each other: so that a circle of them is seen.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace levada::pipeline {

/// Thrown out of a wait whose thread has been told to stop. No std::exception: no stage's function has failed.
struct Stopped {};

class PullThread;
using PullThreadPtr = std::shared_ptr<PullThread>;
/// Whom a thread waits for; null: it need not wait any more.
using Blocker = std::function<PullThreadPtr()>;

/// A thread at work on a graph: the caller's, and one a Prefetch.
class PullThread {
 public:
  /// Of a thread that a Prefetch has begun; null on the caller's.
  static const PullThread* of_this_thread();
  /// While it lives this thread is that PullThread.
  class OnThisThread {
   public:
    explicit OnThisThread(const PullThread& thread);
    ~OnThisThread();
    OnThisThread(const OnThisThread&) = delete;
    OnThisThread& operator=(const OnThisThread&) = delete;
  };

  bool waiting() const { return waiting_; }
  bool stopped() const { return stopped_; }

  /// While one lives the thread is not stopped, unless all is over: it makes an item that others want too.
  class Unstoppable {
   public:
    explicit Unstoppable(PullThread& thread) : thread_(thread) { ++thread_.needed_; }
    ~Unstoppable() { --thread_.needed_; }
    Unstoppable(const Unstoppable&) = delete;
    Unstoppable& operator=(const Unstoppable&) = delete;

   private:
    PullThread& thread_;
  };

 private:
  friend class PullThreads;
  class Waiting;
  std::condition_variable wakeup_;
  std::atomic<bool> waiting_{false}, stopped_{false};
  const Blocker* blocker_ = nullptr;
  bool may_fail_ = false;
  int needed_ = 0;  ///< of its own thread
};

/// A place in a graph that one thread at a time pulls from: behind a fork that of any of its branches. Any thread may
/// ask.
class PullPoint {
 public:
  explicit PullPoint(PullThreadPtr thread = nullptr) : thread_(std::move(thread)) {}
  PullThreadPtr thread() const {
    const std::lock_guard lock(mutex_);
    return thread_;
  }
  void take(PullThreadPtr thread) {
    const std::lock_guard lock(mutex_);
    thread_ = std::move(thread);
  }

 private:
  mutable std::mutex mutex_;
  PullThreadPtr thread_;
};
using PullPointPtr = std::shared_ptr<PullPoint>;

/// All threads that pull at one graph. Any thread may call.
class PullThreads {
 public:
  /// `poll`: called now and then while the caller's thread waits; what it throws ends the wait. May be empty.
  explicit PullThreads(std::function<void()> poll = {}) : poll_(std::move(poll)) {}

  /// Blocks `thread`, which calls, until `blocker` gives null. It is asked again after each wake(thread), and must
  /// depend on nothing but atomics and pull points. False: all in a circle of threads wait for the next, so that nobody
  /// could move; only where `may_fail`. Throws Stopped.
  bool wait(PullThread& thread, const Blocker& blocker, bool may_fail);
  /// To be called after what `thread` may be waiting for has changed. Null: nobody has taken the pull point yet.
  void wake(const PullThreadPtr& thread);
  /// Ends the waits of `thread`, that under way and those to come.
  void stop(PullThread& thread);
  /// Nobody wants any item of the graph any more, so that nothing keeps its threads from being stopped.
  void end() { over_ = true; }
  /// Asked by `thread` itself.
  bool must_stop(const PullThread& thread) const { return over_ || (thread.stopped_ && thread.needed_ == 0); }

 private:
  bool in_circle(PullThread& thread);
  void sleep(PullThread& thread, std::unique_lock<std::mutex>& lock);

  std::function<void()> poll_;
  std::atomic<bool> over_{false};
  std::mutex mutex_;
};

}  // namespace levada::pipeline
