// Threads that join each other's work.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "levada/base/threads.h"

namespace levada {

/// Threads of which each that has nothing of its own to do helps with what another one runs. Any thread may call.
class WorkTeam {
 public:
  /// Starts `helpers` threads that help() until the end, or as many as the system allows. Throws EngineError where it
  /// allows none of them.
  explicit WorkTeam(int helpers = 0);
  ~WorkTeam();
  WorkTeam(const WorkTeam&) = delete;
  WorkTeam& operator=(const WorkTeam&) = delete;

  /// Calls `work` on this thread, and on any that help meanwhile; returns when all have returned from it. `work` must
  /// throw nothing, and return only when there is nothing left of it for another thread to begin.
  void run(const std::function<void()>& work);
  /// Joins the work that the fewest threads are at, again and again until end().
  void help();
  /// Ends help(), on all threads and for good.
  void end();

 private:
  struct Joint {
    const std::function<void()>& work;
    int threads = 1;
  };

  std::mutex mutex_;
  std::condition_variable begun_, left_;
  // Guarded by mutex_.
  std::vector<Joint*> open_;  ///< what may be joined
  bool has_ended_ = false;

  ThreadGroup helpers_;
};

/// Calls act(i) for each i below `count`, on `threads` threads, or as many as the system allows. The first `helpers` of
/// them help the team when there is no i left. Rethrows the exception of the lowest i that failed.
void for_each_of(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& act, WorkTeam& team,
                 std::size_t helpers);

}  // namespace levada
