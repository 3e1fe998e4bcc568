// The threads that pull items through one graph, and how they wait for each other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

namespace levada::pipeline {

/// Thrown from a wait whose thread must stop. Not a std::exception, since no stage's function has failed.
struct Stopped {};

/// A thread that a Prefetch runs. All other code of a graph runs on the caller's thread.
class PrefetchThread {
 public:
  /// Returns the PrefetchThread that runs on this thread; null on the caller's.
  static PrefetchThread* current();

  bool stopped() const { return stopped_; }

  /// While one exists, the thread stops only with the whole graph, because it is making an item that other threads
  /// need.
  class Unstoppable {
   public:
    explicit Unstoppable(PrefetchThread* thread) : thread_(thread) {
      if (thread_ != nullptr) ++thread_->needed_;
    }
    ~Unstoppable() {
      if (thread_ != nullptr) --thread_->needed_;
    }
    Unstoppable(const Unstoppable&) = delete;
    Unstoppable& operator=(const Unstoppable&) = delete;

   private:
    PrefetchThread* thread_;
  };

 private:
  friend class GraphThreads;
  std::atomic<bool> stopped_{false};
  int needed_ = 0;  ///< used only by its own thread
  bool ended_ = false, joined_ = false;
};

/// A point at which one thread at a time waits. Must outlive the wait.
class WaitPoint {
 private:
  friend class GraphThreads;
  std::condition_variable wakeup_;
  std::atomic<bool> waiting_{false};
  const PrefetchThread* thread_ = nullptr;  ///< the thread that waits here
  const std::function<bool()>* is_ready_ = nullptr;
  bool can_fail_ = false;
};

/// The threads of one pass over a graph that have not started yet.
class PendingThreads {
 public:
  /// Must be called before any thread calls start().
  void add(int stage, std::function<void()> start) { starts_.emplace(stage, std::move(start)); }
  /// Starts the threads of stage `last_stage` and of all stages with lower numbers, inputs first. Thread-safe.
  void start(int last_stage);

 private:
  std::mutex mutex_;
  std::map<int, std::function<void()>> starts_;
};

/// All threads that pull from one graph. Thread-safe.
class GraphThreads {
 public:
  /// `poll` is called periodically while the caller's thread waits; its exceptions end the wait. May be empty.
  explicit GraphThreads(std::function<void()> poll = {}) : poll_(std::move(poll)) {}

  /// Blocks until `is_ready` returns true. `is_ready` must read only atomics; it is called again after each
  /// wake(point). With `can_fail`, returns false on a deadlock: all threads of the graph wait and none is ready. Throws
  /// Stopped.
  bool wait(WaitPoint& point, const std::function<bool()>& is_ready, bool can_fail = false);
  /// Wakes the waiter at `point`. Must be called after every change that it may depend on.
  void wake(WaitPoint& point);

  /// Announces that a thread is about to start.
  void add();
  /// Runs `body` as `thread`, which add() has announced. Swallows Stopped.
  void run(PrefetchThread& thread, const std::function<void()>& body);
  /// Stops `thread` and calls `join` to wait for its end.
  void stop(PrefetchThread& thread, const std::function<void()>& join);
  /// Ends the graph. No more items are needed, so its threads may abandon the items in progress.
  void end() { over_ = true; }
  /// Returns whether the calling thread has to stop.
  bool must_stop() const { return must_stop(PrefetchThread::current()); }

 private:
  bool must_stop(const PrefetchThread* thread) const {
    return over_ || (thread != nullptr && thread->stopped_ && thread->needed_ == 0);
  }
  bool is_stuck();
  void wake_all();
  void sleep(WaitPoint& point, std::unique_lock<std::mutex>& lock);

  std::function<void()> poll_;
  std::atomic<bool> over_{false};
  std::mutex mutex_;
  std::vector<WaitPoint*> waiting_;
  std::size_t threads_ = 1;  ///< including the caller's
  std::size_t joining_ = 0;  ///< threads that wait for the end of a running one
};

}  // namespace levada::pipeline
