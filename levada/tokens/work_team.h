// Threads that help with each other's work.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "levada/base/threads.h"

namespace levada {

/// Threads that, when idle, help with work that another thread runs. Thread-safe.
class WorkTeam {
 public:
  /// Starts `helpers` threads that help() until the end, or as many as the system allows. Throws EngineError if it
  /// allows none.
  explicit WorkTeam(int helpers = 0);
  ~WorkTeam();
  WorkTeam(const WorkTeam&) = delete;
  WorkTeam& operator=(const WorkTeam&) = delete;

  /// Calls `work` on this thread and on every thread that joins it through help(). Returns when all calls have
  /// returned. `work` must not throw, and must return only when no part of it is left for another thread to begin.
  void run(const std::function<void()>& work);
  /// Repeatedly joins the work with the fewest threads, until end().
  void help();
  /// Ends help(), on all threads and permanently.
  void end();

 private:
  struct Joint {
    const std::function<void()>& work;
    int threads = 1;
  };

  std::mutex mutex_;
  std::condition_variable begun_, left_;
  // Guarded by mutex_.
  std::vector<Joint*> open_;  ///< work that may be joined
  bool has_ended_ = false;

  ThreadGroup helpers_;
};

/// Calls act(i) for each i below `count`, on `threads` threads, or as many as the system allows. The first `helpers` of
/// them help the team when no i is left. Rethrows the exception of the lowest i that failed. Throws EngineError if the
/// system allows no additional thread.
void for_each_of(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& act, WorkTeam& team,
                 std::size_t helpers);

}  // namespace levada
