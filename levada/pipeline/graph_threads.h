// The threads that pull items through one graph, and how they wait for each other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

namespace levada::pipeline {

/// Thrown out of a wait whose thread has to stop. Not a std::exception: no stage's function has failed.
struct Stopped {};

/// A thread that a Prefetch runs. All other code of a graph runs on the caller's thread.
class PrefetchThread {
 public:
  /// Returns the one that runs on this thread; null on the caller's.
  static PrefetchThread* current();

  bool stopped() const { return stopped_; }

  /// While one lives the thread is only stopped with the whole graph: it makes an item that other threads need.
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
  int needed_ = 0;  ///< of its own thread
  bool ended_ = false, joined_ = false;
};

/// Where one thread at a time waits. Outlives the wait.
class WaitPoint {
 private:
  friend class GraphThreads;
  std::condition_variable wakeup_;
  std::atomic<bool> waiting_{false};
  const PrefetchThread* thread_ = nullptr;  ///< that waits here
  const std::function<bool()>* is_ready_ = nullptr;
  bool can_fail_ = false;
};

/// The threads of one pass over a graph that have not started yet.
class PendingThreads {
 public:
  /// Before any thread calls start().
  void add(int stage, std::function<void()> start) { starts_.emplace(stage, std::move(start)); }
  /// Starts the threads of all stages up to that number, inputs first: of it and of all that feed it. Any thread may
  /// call.
  void start(int last_stage);

 private:
  std::mutex mutex_;
  std::map<int, std::function<void()>> starts_;
};

/// All threads that pull at one graph. Any thread may call.
class GraphThreads {
 public:
  /// `poll` is called now and then while the caller's thread waits; what it throws ends the wait. May be empty.
  explicit GraphThreads(std::function<void()> poll = {}) : poll_(std::move(poll)) {}

  /// Blocks until `is_ready`, which reads nothing but atomics, is true; it is asked again after each wake(point).
  /// Returns false if all threads of the graph wait and none is ready, so that none could ever go on; only with
  /// `can_fail`. Throws Stopped.
  bool wait(WaitPoint& point, const std::function<bool()>& is_ready, bool can_fail = false);
  /// Called after a change that what waits at `point` may depend on.
  void wake(WaitPoint& point);

  /// `thread` is about to be started.
  void add();
  /// Runs `body` as `thread`, which add() has announced. Swallows Stopped.
  void run(PrefetchThread& thread, const std::function<void()>& body);
  /// Stops `thread` and waits with `join` for its end.
  void stop(PrefetchThread& thread, const std::function<void()>& join);
  /// Nobody wants an item of the graph any more: its threads may stop whatever they make.
  void end() { over_ = true; }
  /// Whether the calling thread has to stop.
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
  std::size_t threads_ = 1;  ///< with the caller's
  std::size_t joining_ = 0;  ///< threads that wait for the end of one that runs
};

}  // namespace levada::pipeline
