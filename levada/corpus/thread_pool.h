// Threads that read concurrently.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace levada {

/// A few threads, including the caller's, that share numbered pieces of work. The other threads start with the first
/// work that needs them; if the system allows only some of them, those do the work. In a process forked after that, the
/// caller does all of it. Used by one thread at a time.
class ThreadPool {
 public:
  /// `size`: at least 1; the caller and size - 1 threads. `purpose`: names their task, such as "opening files", in the
  /// error if the system refuses to start them.
  ThreadPool(int size, std::string purpose);
  ~ThreadPool();

  int size() const;
  /// Calls act(piece, member) once for each piece in [0, pieces); `member` in [0, size()) identifies the thread. Waits
  /// for all pieces, then throws the exception of the first piece that failed. After a failure, no more pieces begin.
  /// Throws EngineError if the system does not allow a single additional thread.
  void run(std::size_t pieces, const std::function<void(std::size_t, std::size_t)>& act);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace levada
